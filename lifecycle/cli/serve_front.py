"""`stoker serve --replicas N`: a fleet behind one URL, until it is told to stop."""

from __future__ import annotations

import argparse
import signal
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import anyio
import msgspec

from lifecycle.adapter import Adapter
from lifecycle.cli.operate import Operation
from lifecycle.cli.say import put, stamped, tell
from lifecycle.cli.watch import PHASE_PAUSE, FleetNarrator, Narrator, attended, code_of_end, each_of, telling
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, Draining, StartFailed
from lifecycle.fleet.front import Front
from lifecycle.fleet.front_settings import FrontConfig, replica_config, router_config
from lifecycle.fleet.settings import FleetConfig, check_local
from lifecycle.journal import Record
from lifecycle.operate.settings import OperateConfig
from lifecycle.ray.settings import RayConfig
from lifecycle.roster import Roster


async def serve(
    args: argparse.Namespace,
    config: ServerConfig,
    adapter: Adapter,
    size: FleetConfig,
    settings: FrontConfig,
    ray: RayConfig,
    operate: OperateConfig,
) -> int:
    """Keep replicas and a router healthy, and print their one URL each time that it begins to be served. The exit code.
    """
    replica, make = replica_config(config), None
    if ray.ray:
        from lifecycle.ray.fleet import behind_router

        replica, make = behind_router(replica, ray, size, adapter, args.journal)
    else:
        check_local(size, replica, adapter)  # before the router, which may be missing as well
    router = router_config(settings, config)
    fleet = FleetNarrator(config.label, size.replicas, stamped, stamped, pause=PHASE_PAUSE)
    itself = Narrator(lambda text: stamped(f"  router {text}"), lambda text: stamped(f"  router {text}"))

    def narrate(record: Record) -> None:
        (itself if record.server == router.label else fleet)(record)

    def served(url: str) -> None:
        put(msgspec.json.encode({"kind": "url", "server": router.label, "url": url}).decode() if args.json else url)

    roster, operation = Roster(), Operation(operate, config)
    front = Front(
        replica, router, size, adapter=adapter, make=make, journal=args.journal,
        listener=each_of(telling(narrate, as_json=args.json), roster, operation), served=served,
    )
    again = (signal.SIGHUP,) if args.rolling_restart else ()
    asked = attended(front, anyio.Event(), stamped, but=again, roster=roster, hurry=operation.hurry)
    async with asked as signals, operation.around(front, stamped), front, restarting(front, again):
        ended = await front.ended()
    return code_of_end(signals, ended, front.diagnosis)


@asynccontextmanager
async def restarting(front: Front, numbers: Collection[signal.Signals]) -> AsyncIterator[None]:
    """While the body runs, each of these signals replaces the replicas one after the other."""
    async with anyio.create_task_group() as group:
        if numbers:
            group.start_soon(_restart, front, numbers)
        yield
        group.cancel_scope.cancel()


async def _restart(front: Front, numbers: Collection[signal.Signals]) -> None:
    with anyio.open_signal_receiver(*numbers) as signals:
        async for number in signals:
            tell(f"\n{signal.Signals(number).name}: restarting the replicas one after the other")
            try:
                await front.rolling_restart()
                stamped("  every replica was restarted")
            except (StartFailed, Draining, ConfigError) as error:
                stamped(f"  the rolling restart has ended before its end: {error}")
