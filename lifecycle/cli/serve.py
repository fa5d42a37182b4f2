"""`stoker serve`: keep one server, or several behind one URL, healthy until it is told to stop."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import msgspec

from lifecycle.adapter import Adapter
from lifecycle.cli import detach
from lifecycle.cli.hosts import GROUP_KEYS, Hosts, group_or_server, hosts_of, narrator_of, refuse_fleet, work
from lifecycle.cli.on_ray import check_place, ray_of
from lifecycle.cli.operate import OPERATE_KEYS, Operation, operate_of
from lifecycle.cli.say import put, stamped
from lifecycle.cli.serve_front import serve
from lifecycle.cli.settings import FLEET_KEYS, FRONT_KEYS, collect, fleet_of, front_of
from lifecycle.cli.watch import PHASE_PAUSE, attended, code_of_end, each_of, telling
from lifecycle.config import ServerConfig
from lifecycle.door import Door, opened
from lifecycle.errors import ConfigError
from lifecycle.fleet.front_settings import LOOPBACK, replica_config
from lifecycle.fleet.settings import refuse_rest
from lifecycle.journal import Kind, Record
from lifecycle.operate.settings import OperateConfig
from lifecycle.ray.settings import RAY_KEYS
from lifecycle.roster import Roster
from lifecycle.server import Server
from lifecycle.service import Listener

if TYPE_CHECKING:
    from lifecycle.group.group import Group


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 stopped as asked, 1 given up, 130 after a second signal."""
    if args.detach:
        return detach.run(args)
    args.name = args.attach or args.name
    size, front, ray, operate = fleet_of(args), front_of(args), ray_of(args), operate_of(args)
    others = (*FLEET_KEYS, *FRONT_KEYS, *GROUP_KEYS, *RAY_KEYS, *OPERATE_KEYS)
    config, adapter, _ = collect(args, others, ask_backend=not ray.ray)
    check_place(ray, replica_config(config), adapter)
    hosts = hosts_of(args, config)
    if hosts is not None:
        refuse_fleet(size, hosts)
        if hosts.role.rank > 0:
            return work(args, config, adapter, hosts, operate, as_json=args.json)
    if (not size.single or ray.ray or hosts is not None) and args.attach:
        raise ConfigError(f"--attach {args.attach}: only one server on this host can be attached to, not several")
    if not size.single or ray.ray:
        refuse_rest(config)
        return anyio.run(serve, args, config, adapter, size, front, ray, operate)
    return anyio.run(_serve, config, adapter, hosts, operate, args.journal, args.json, bool(args.attach))


async def _serve(
    config: ServerConfig,
    adapter: Adapter,
    hosts: Hosts | None,
    operate: OperateConfig,
    journal: str | None,
    as_json: bool,
    attach: bool,
) -> int:
    narrate = narrator_of(hosts, config.label, stamped, stamped, pause=PHASE_PAUSE)

    roster, operation = Roster(), Operation(operate, config)
    tell_of = each_of(telling(narrate, as_json=as_json), roster, operation)

    def listen(record: Record) -> None:
        tell_of(record)
        if record.kind is Kind.TRANSITION and record.after == "Healthy" and record.server == config.label:
            at = server.url if door is None else door.url
            url = {"kind": "url", "server": record.server, "url": at}
            put(msgspec.json.encode(url).decode() if as_json else at)

    server, door = _behind_door(config, adapter, hosts, journal, listen, attach)
    asked = attended(
        server, anyio.Event(), stamped, roster=roster, in_flight=lambda: server.client.in_flight,
        hurry=operation.hurry,
    )  # fmt: skip
    async with asked as signals, operation.around(server, stamped), opened(door), server:
        ended = await server.ended()
    return code_of_end(signals, ended, server.diagnosis)


def _behind_door(
    config: ServerConfig, adapter: Adapter, hosts: Hosts | None, journal: str | None, listen: Listener, attach: bool
) -> tuple[Group | Server, Door | None]:
    """What is to be served; and where it rests at times, a door at its address, with the engine at another one."""
    if hosts is not None:
        return group_or_server(config, adapter, hosts, journal, listen), None
    behind = replace(config, host=LOOPBACK, port=None) if config.idle_timeout else config
    server = Server(behind, adapter=adapter, journal=journal, listener=listen, attach=attach)
    return server, Door(server.gate, config.host, config.port) if config.idle_timeout else None
