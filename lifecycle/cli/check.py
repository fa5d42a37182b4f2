"""`stoker check`: what would go wrong with a start, as a table. Nothing is started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lifecycle.adapter import Adapter
from lifecycle.batch.config import JobConfig
from lifecycle.cli.generate import JOB_KEYS, job_of
from lifecycle.cli.hosts import GROUP_KEYS, without_tasks
from lifecycle.cli.on_ray import ray_of
from lifecycle.cli.operate import OPERATE_KEYS
from lifecycle.cli.say import put, tell
from lifecycle.cli.settings import FLEET_KEYS, FRONT_KEYS, collect, fleet_of, front_of
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.fleet.front_settings import FrontConfig, replica_config
from lifecycle.fleet.settings import FleetConfig
from lifecycle.preflight import Check, Status
from lifecycle.preflight.fleets import ray_row, replicas_row, router_row
from lifecycle.preflight.flight import Flight, in_thread
from lifecycle.preflight.jobs import job_row
from lifecycle.ray.settings import RAY_KEYS, RayConfig
from lifecycle.resources.local import LocalHost

BLOCKED = 1
SLOW = 1.0
"""Seconds after which a check that still runs is named."""
COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.BLOCKER: "bold red"}
NARROWEST = 100
"""Columns of the table where no terminal says how many there are."""


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 nothing stands in the way, 1 a start would fail."""
    size, front, ray = fleet_of(args), front_of(args), ray_of(args)
    keys = (*FLEET_KEYS, *FRONT_KEYS, *GROUP_KEYS, *RAY_KEYS, *JOB_KEYS, *OPERATE_KEYS)
    config, adapter, settings = collect(args, keys, ask_backend=False)
    job = _job(args, settings)
    rows = anyio.run(_look, config, adapter, size, front, ray, job)
    if args.json:
        for row in rows:
            put(msgspec.json.encode(asdict(row)).decode())
    else:
        put(table(rows))
        put(verdict(rows))
    return BLOCKED if any(row.status is Status.BLOCKER for row in rows) else 0


def _job(args: argparse.Namespace, settings: dict[str, Any]) -> JobConfig | None:
    """The job whose words were given; None: those of a server alone. Raises `ConfigError` for half of a job."""
    if args.input is None and args.output is None:
        return None
    if args.input is None or args.output is None:
        there, missing = ("--output", "INPUT") if args.input is None else ("INPUT", "--output")
        raise ConfigError(f"{there} is given and {missing} is not: a job has both, and a server has neither")
    return job_of(args, {key: value for key, value in settings.items() if key in JOB_KEYS})


async def _look(
    config: ServerConfig,
    adapter: Adapter,
    size: FleetConfig,
    front: FrontConfig,
    ray: RayConfig,
    job: JobConfig | None,
) -> list[Check]:
    """Of replicas on a cluster, what is here says nothing: the cluster is looked at. Those of a job need no router."""
    several = bool(ray.ray) or not size.single
    replica = replica_config(config) if several else config
    rows: list[Check] = []
    async with _told_of_slowness() as began:
        if ray.ray:
            began("ray")
            rows = [await ray_row(ray, size, replica, adapter)]
        else:
            rows = await Flight(replica, adapter, LocalHost.of(config)).fly(began)
            if several:
                began("replicas")
                rows.append(await in_thread(lambda: replicas_row(size, replica, adapter)))
        if several and job is None:
            began("router")
            rows.append(await in_thread(lambda: router_row(front, config)))
        if job is not None:
            began("the input")
            environ = os.environ if config.nodes == 1 else without_tasks(os.environ)
            rows.append(await in_thread(partial(job_row, job, environ)))
    return rows


class _Clock:
    """The check that is being made, and since when."""

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0

    def __call__(self, name: str) -> None:
        self.name, self.since = name, anyio.current_time()


@asynccontextmanager
async def _told_of_slowness() -> AsyncIterator[_Clock]:
    """Name a check that takes longer than a second on standard error, again and again on a terminal."""
    clock = _Clock()
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, clock)
        try:
            yield clock
        finally:
            group.cancel_scope.cancel()


async def _watch(clock: _Clock) -> None:
    live, told = sys.stderr.isatty(), ""
    try:
        while True:
            await anyio.sleep(SLOW)
            seconds = anyio.current_time() - clock.since
            if seconds < SLOW or not clock.name:
                continue
            if live:
                print(f"\r\x1b[K  looking at {clock.name} … {seconds:.0f} s", end="", file=sys.stderr, flush=True)
            elif told != clock.name:
                tell(f"  looking at {clock.name} …")
            told = clock.name
    finally:
        if live and told:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def table(rows: Sequence[Check]) -> str:
    """The rows for people; in colours on a terminal."""
    console = Console(width=None if sys.stdout.isatty() else NARROWEST)
    shown = Table("check", "", "found, and what to do", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.columns[0].no_wrap = shown.columns[1].no_wrap = True
    shown.columns[2].overflow = "fold"
    for row in rows:
        told = Text("\n").join([Text(row.found), *([Text(f"→ {row.advice}", "bold")] if row.advice else [])])
        shown.add_row(row.name, Text(row.status, COLOURS[row.status]), told)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def verdict(rows: Sequence[Check]) -> str:
    """All of it in one line."""
    count = {status: sum(row.status is status for row in rows) for status in Status}
    if count[Status.BLOCKER]:
        return f"\na start would fail: {_many(count[Status.BLOCKER], 'blocker')}"
    if count[Status.WARNING]:
        return f"\nnothing stands in the way of a start; {_many(count[Status.WARNING], 'warning')}"
    return "\nnothing stands in the way of a start"


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
