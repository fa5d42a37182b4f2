"""What `stoker serve` and `stoker generate` do on several hosts: who this is, and what a host does that is not the
head."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from lifecycle.adapter import Adapter
from lifecycle.cli.operate import Operation
from lifecycle.cli.say import stamped
from lifecycle.cli.settings import own_settings
from lifecycle.cli.signals import exit_code_of
from lifecycle.cli.watch import PHASE_PAUSE, GroupNarrator, Narrator, attended, code_of_end, each_of, telling
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.fleet.settings import FleetConfig
from lifecycle.group.roles import Role, role_of
from lifecycle.group.settings import GroupConfig, check, group_key
from lifecycle.operate.settings import OperateConfig
from lifecycle.roster import Roster
from lifecycle.server import Server
from lifecycle.service import Listener

if TYPE_CHECKING:
    from lifecycle.group.group import Group

GROUP_KEYS = tuple(each.name for each in fields(GroupConfig))
"""Settings of a group, which are not those of its servers."""


@dataclass(frozen=True)
class Hosts:
    """This host's place among several."""

    role: Role
    group: GroupConfig


def hosts_of(args: argparse.Namespace, config: ServerConfig, environ: Mapping[str, str] = os.environ) -> Hosts | None:
    """The role of this host and how it meets the others; None: one host is all there is. Give `GROUP_KEYS` to
    `collect` as keys that are no server's. Raises `ConfigError`."""
    group, said = own_settings(args, GROUP_KEYS, GroupConfig), own_settings(args, ("nodes", "node_rank"), _Said)
    if config.nodes == 1:
        if said.node_rank or (said.nodes is None and (said.node_rank is not None or group.head)):
            raise ConfigError(
                f"node_rank = {said.node_rank} and head = {group.head!r} are for one of several hosts, and nodes = 1: "
                "say how many there are with --nodes N, or leave these out"
            )
        return None
    check(group)
    return Hosts(role_of(config.nodes, said.node_rank, group.head, environ), group)


@dataclass(frozen=True)
class _Said:
    nodes: int | None = None
    node_rank: int | None = None


def without_tasks(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say which share of an input is a job's, without those that tell its hosts apart: they have one
    share together."""
    return {name: value for name, value in environ.items() if name.startswith("SLURM_ARRAY_")}


def work(
    args: argparse.Namespace,
    config: ServerConfig,
    adapter: Adapter,
    hosts: Hosts,
    operate: OperateConfig,
    *,
    as_json: bool,
) -> int:
    """Take part until the group has ended. The exit code: 0 ended in order, 1 the group was given up or not found, that
    of a signal which came before the head was found, 130 after a second Ctrl-C."""
    return anyio.run(_work, config, adapter, hosts, Operation(operate, config), args.journal, as_json)


async def _work(
    config: ServerConfig, adapter: Adapter, hosts: Hosts, operation: Operation, journal: str | None, as_json: bool
) -> int:
    from lifecycle.group.worker import Worker

    narrate = GroupNarrator(f"{config.label}-host-{hosts.role.rank}", stamped, stamped, pause=PHASE_PAUSE)
    roster = Roster()
    listen = each_of(telling(narrate, as_json=as_json), roster, operation)
    worker = Worker(config, hosts.role, group=hosts.group, adapter=adapter, journal=journal, listener=listen)
    asked = attended(worker, anyio.Event(), stamped, roster=roster, hurry=operation.hurry)
    async with asked as signals, operation.around(None, stamped), worker:
        ended = await worker.ended()
    if signals and not worker.starts and ended == "Stopped":
        return exit_code_of(signals)
    return code_of_end(signals, ended, worker.diagnosis)


def narrator_of(
    hosts: Hosts | None,
    label: str,
    say: Callable[[str], None],
    phase: Callable[[str], None],
    status: Callable[[str], None] = lambda state: None,
    *,
    pause: float = 0.0,
) -> Listener:
    """Who tells the story of one server, or of a group."""
    if hosts is None:
        return Narrator(say, phase, status, pause=pause)
    return GroupNarrator(label, say, phase, status, pause=pause)


def group_or_server(
    config: ServerConfig, adapter: Adapter, hosts: Hosts | None, journal: str | Path | None, listener: Listener
) -> Group | Server:
    """One server on this host, or the group of which it is the head. Raises `ConfigError`."""
    if hosts is None:
        return Server(config, adapter=adapter, journal=journal, listener=listener)
    from lifecycle.group.group import Group

    return Group(config, hosts.role, group=hosts.group, adapter=adapter, journal=journal, listener=listener)


async def send_home(config: ServerConfig, hosts: Hosts) -> None:
    """Tell the other hosts that there is nothing to do, as they come."""
    from lifecycle.group.meeting import Meeting
    from lifecycle.group.messages import Dismiss, digests
    from lifecycle.group.network import TcpNetwork

    key = group_key(hosts.group)
    meeting = Meeting(hosts.role.nodes, digests(config), hosts.group, key, TcpNetwork(), lambda text: None)
    with anyio.move_on_after(hosts.group.gather_timeout):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meeting.hold, hosts.role.head, hosts.role.port)
            await meeting.complete()
            await meeting.end(Dismiss())
            tasks.cancel_scope.cancel()


def refuse_fleet(fleet: FleetConfig, hosts: Hosts) -> None:
    """Raises `ConfigError` for several groups under one command."""
    if not fleet.single:
        raise ConfigError(
            f"replicas = {fleet.replicas} and nodes = {hosts.role.nodes} do not go together: start each group by a "
            "command of its own, or let Ray place the replicas"
        )
