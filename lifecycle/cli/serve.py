"""`stoker serve`: keep one server, or several behind one URL, healthy until it is told to stop."""

from __future__ import annotations

import argparse

import anyio
import msgspec

from lifecycle.adapter import Adapter
from lifecycle.cli.hosts import GROUP_KEYS, Hosts, group_or_server, hosts_of, narrator_of, refuse_fleet, work
from lifecycle.cli.on_ray import check_place, ray_of
from lifecycle.cli.say import put, stamped
from lifecycle.cli.serve_front import serve
from lifecycle.cli.settings import FLEET_KEYS, FRONT_KEYS, collect, fleet_of, front_of
from lifecycle.cli.watch import PHASE_PAUSE, attended, code_of_end, each_of, telling
from lifecycle.config import ServerConfig
from lifecycle.fleet.front_settings import replica_config
from lifecycle.journal import Kind, Record
from lifecycle.ray.settings import RAY_KEYS
from lifecycle.roster import Roster


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 stopped as asked, 1 given up, 130 after a second signal."""
    size, front, ray = fleet_of(args), front_of(args), ray_of(args)
    config, adapter, _ = collect(args, (*FLEET_KEYS, *FRONT_KEYS, *GROUP_KEYS, *RAY_KEYS), ask_backend=not ray.ray)
    check_place(ray, replica_config(config), adapter)
    hosts = hosts_of(args, config)
    if hosts is not None:
        refuse_fleet(size, hosts)
        if hosts.role.rank > 0:
            return work(args, config, adapter, hosts, as_json=args.json)
    if not size.single or ray.ray:
        return anyio.run(serve, args, config, adapter, size, front, ray)
    return anyio.run(_serve, config, adapter, hosts, args.journal, args.json)


async def _serve(
    config: ServerConfig, adapter: Adapter, hosts: Hosts | None, journal: str | None, as_json: bool
) -> int:
    narrate = narrator_of(hosts, config.label, stamped, stamped, pause=PHASE_PAUSE)

    roster = Roster()
    tell_of = each_of(telling(narrate, as_json=as_json), roster)

    def listen(record: Record) -> None:
        tell_of(record)
        if record.kind is Kind.TRANSITION and record.after == "Healthy" and record.server == config.label:
            url = {"kind": "url", "server": record.server, "url": server.url}
            put(msgspec.json.encode(url).decode() if as_json else server.url)

    server = group_or_server(config, adapter, hosts, journal, listen)
    asked = attended(
        server, anyio.Event(), stamped, roster=roster, in_flight=lambda: server.client.in_flight
    )
    async with asked as signals, server:
        ended = await server.ended()
    return code_of_end(signals, ended, server.diagnosis)
