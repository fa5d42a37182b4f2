"""`stoker generate`: start a server, send it every prompt, write every answer, end it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Timer
from typing import Any

import anyio
import msgspec

from lifecycle.adapter import Adapter
from lifecycle.batch.config import JobConfig, with_auto
from lifecycle.batch.functions import find_rollout
from lifecycle.batch.job import run_job
from lifecycle.batch.plan import Plan, prepare
from lifecycle.batch.progress import Progress, display
from lifecycle.batch.summary import EXIT_ERRORS, Uptime, write_summary
from lifecycle.cli.hosts import (
    GROUP_KEYS,
    Hosts,
    group_or_server,
    hosts_of,
    narrator_of,
    refuse_fleet,
    send_home,
    without_tasks,
    work,
)
from lifecycle.cli.on_ray import check_place, ray_of
from lifecycle.cli.operate import OPERATE_KEYS, Operation, operate_of
from lifecycle.cli.say import tell
from lifecycle.cli.settings import FLEET_KEYS, FRONT_KEYS, collect, fleet_of
from lifecycle.cli.signals import WORK_LEFT, exit_code_of
from lifecycle.cli.watch import FleetNarrator, attended, tell_failure
from lifecycle.config import ServerConfig, convert, read_table
from lifecycle.decoding import decode
from lifecycle.errors import ConfigError, StartFailed
from lifecycle.fleet.settings import FleetConfig, check_local
from lifecycle.journal import Record
from lifecycle.ray.settings import RAY_KEYS, RayConfig
from lifecycle.resources.nofile import room_for
from lifecycle.roster import Roster
from lifecycle.service import Listener, Service

NEVER_BEGUN = 2
"""What `tell_failure` answers if nothing was started."""
JOB_KEYS = frozenset(each.name for each in fields(JobConfig)) - {"input", "output", "model"}
"""Settings of a job, which are not those of its servers."""
FLAGS = (
    "concurrency", "max_tokens", "temperature", "seed", "system", "template", "rollouts", "rollout", "context",
    "on_error", "retry_errors", "format", "part_size", "rank", "world_size", "summary",
    "stop_before",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0, 1 server given up or job aborted, 3 lines with errors, 75 out of time, 130 and 143
    interrupted."""
    ray, operate = ray_of(args), operate_of(args)
    # On a cluster the model and the engine are looked for where they are: on the nodes.
    # A file may be that of `stoker serve` as well.
    others = {*FLEET_KEYS, *FRONT_KEYS, *GROUP_KEYS, *RAY_KEYS, *OPERATE_KEYS}
    config, adapter, settings = collect(args, JOB_KEYS | others, ask_backend=not ray.ray)
    check_place(ray, config, adapter)
    fleet, hosts = fleet_of(args), hosts_of(args, config)
    if hosts is not None:
        refuse_fleet(fleet, hosts)
        if hosts.role.rank > 0:
            return work(args, config, adapter, hosts, operate, as_json=False)
    if not ray.ray:
        check_local(fleet, config, adapter)
    job = job_of(args, {key: value for key, value in settings.items() if key in JOB_KEYS})
    if job.rollout:
        find_rollout(job.rollout)
    operation = Operation(operate, config)
    with _patient(job):
        plan = prepare(job, os.environ if hosts is None else without_tasks(os.environ))
    with plan:
        if plan.left == 0:
            plan.store.finish()
            if hosts is not None:
                anyio.run(send_home, config, hosts)
            return _nothing_left(plan)
        if plan.earlier and plan.changed:
            tell(f"note: {plan.earlier} records were finished with other settings than this run has: {plan.changed}")
        shortfall = room_for(job.concurrency)
        if shortfall:
            tell(f"stoker: {shortfall}")
        journal = Path(args.journal or f"{str(plan.output).rstrip('/')}.journal.jsonl")
        if journal.resolve() == plan.output.resolve():
            raise ConfigError(f"the journal cannot be the output {plan.output} as well; name another file")
        new = not journal.exists() and not args.journal
        began_at = journal.stat().st_size if journal.exists() else 0
        plan.begun = False
        servers = Servers(config, adapter, fleet, hosts, ray)
        code: int = anyio.run(_generate, servers, operation, plan, journal, began_at)
        plan.begun = code != NEVER_BEGUN
        if new and not plan.begun and not plan.store.finished:
            journal.unlink(missing_ok=True)
        return code


@contextmanager
def _patient(job: JobConfig) -> Iterator[None]:
    """Say what is going on, if it takes longer than a second before there is anything else to see."""
    said = Timer(1.0, tell, [f"looking at every record of {job.input} and what is finished of them"])
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


def job_of(args: argparse.Namespace, settings: dict[str, Any]) -> JobConfig:
    """The job's own settings: a flag wins over the file, `--set` over both."""
    flags = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    table = settings.get("params", {})
    params = {**(read_table("params", table) if isinstance(table, str) else table), **dict(map(_param, args.param))}
    settings = {**settings, "params": params}
    return convert(with_auto({**flags, **settings, "input": args.input, "output": args.output}), JobConfig)


def _param(text: str) -> tuple[str, Any]:
    """One `NAME=VALUE`: JSON if it is that, else a text. Raises `ConfigError` if there is no `=`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--param {text!r} is not NAME=VALUE")
    try:
        return name, decode(value)
    except msgspec.DecodeError:
        return name, value


def _nothing_left(plan: Plan) -> int:
    if plan.total == 0:
        tell(f"input {plan.job.input} has no lines: there is nothing to do")
        return 0
    told = f", {plan.failed} of them with an error (--retry-errors sends these again)" if plan.failed else ""
    tell(f"all {plan.total} prompts have their line in {plan.output} already{told}")
    return EXIT_ERRORS if plan.failed else 0


@dataclass(frozen=True)
class Servers:
    """What a job's requests are sent to."""

    config: ServerConfig
    adapter: Adapter
    fleet: FleetConfig
    hosts: Hosts | None
    ray: RayConfig

    @property
    def single(self) -> bool:
        """Whether there is no fleet."""
        return self.fleet.single and not self.ray.ray

    def make(self, journal: Path, listener: Listener) -> Service:
        """One server, a group of them, or a fleet, here or on a cluster. Raises `ConfigError`."""
        if self.ray.ray:
            from lifecycle.ray.fleet import ray_fleet

            return ray_fleet(
                self.config, self.ray, self.fleet, adapter=self.adapter, journal=journal, listener=listener
            )
        if self.single:
            return group_or_server(self.config, self.adapter, self.hosts, journal, listener)
        from lifecycle.fleet import Fleet

        size = self.fleet
        return Fleet(
            self.config, replicas=size.replicas, min_healthy=size.min_healthy, cap=size.replica_concurrency,
            replica_gpus=size.replica_gpus, adapter=self.adapter, journal=journal, listener=listener,
        )  # fmt: skip

    def narrator(self, shown: Progress) -> Listener:
        """Tells their story."""
        if self.single:
            return narrator_of(self.hosts, self.config.label, shown.say, shown.phase, shown.status)
        return FleetNarrator(self.config.label, self.fleet.replicas, shown.say, shown.phase, shown.status)


async def _generate(servers: Servers, operation: Operation, plan: Plan, journal: Path, began_at: int) -> int:
    shown = display(plan.job.progress_interval)
    stop = anyio.Event()
    narrator, uptime, roster, left_by = servers.narrator(shown), Uptime(), Roster(), list[Record]()

    def listen(record: Record) -> None:
        narrator(record)
        roster(record)
        operation(record)
        if servers.hosts is None or record.server == servers.config.label:
            uptime(record)
        if record.event == "HostLeaves":  # a signal that came to another host
            left_by.append(record)
            stop.set()

    try:
        server = servers.make(journal, listen)
        async with attended(
            server, stop, shown.say, work_first=True, before=plan.job.stop_before, roster=roster,
            in_flight=lambda: server.client.in_flight, hurry=operation.hurry,
        ) as signals, operation.around(server, shown.say, sends=server), server:  # fmt: skip
            summary = await run_job(
                plan, server.request, progress=shown, stop=stop, retried=lambda: server.client.sent_again,
                load=server.load, at_server=lambda: server.client.in_flight,
            )  # fmt: skip
    except StartFailed as error:
        shown.end()
        code = tell_failure(error)
        if plan.store.finished:
            tell(f"stoker: what was answered is in {plan.output}; the same command goes on from there")
        return code
    finally:
        shown.end()
    label = servers.config.label
    again = uptime.restarts() if servers.single else uptime.restarts(label)
    summary = replace(summary, uptime=uptime.seconds(label), starts=server.starts, restarts=again)
    tell(f"\n{summary.text()}")
    if plan.job.summary:
        write_summary(Path(plan.job.summary), summary)
    _tell_where(plan.output, journal, servers.config.backend, began_at)
    if summary.left == 0 or not (signals or left_by):
        return summary.exit_code
    return exit_code_of(signals) if signals else WORK_LEFT


def _tell_where(output: Path, journal: Path, backend: str, began_at: int) -> None:
    from lifecycle.diagram import run_diagram

    picture = Path(f"{str(output).rstrip('/')}.run.svg")
    run_diagram(journal, picture, backend, began_at)
    for name, path in (("answers", str(output)), ("journal", journal), ("this run as a diagram", picture)):
        tell(f"{name + ':':<23}{path}")
