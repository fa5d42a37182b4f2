"""Metrics in which everything that can be there is there."""

from __future__ import annotations

from contextlib import suppress

import anyio

from lifecycle.errors import StokerError
from lifecycle.journal import Kind, Record
from lifecycle.operate.metrics import Metrics
from lifecycle.testing import Life, run_virtual
from tests.fleet.simulated_fleet import FleetWorld


def metrics_of_much() -> Metrics:
    """Those of a fleet with a replica that crashes, after requests of both kinds."""
    metrics = Metrics()

    async def body() -> None:
        world = FleetWorld([Life(ready=0.1, exits=3.0), Life(ready=0.2), Life(ready=0.1)], replicas=2)
        world.fleet.journal.listen(metrics)
        for slot in world.fleet.slots:
            slot.replica.journal.listen(metrics)  # type: ignore[attr-defined]
        metrics.watch(world.fleet)
        async with world.fleet as fleet:
            await fleet.complete({"prompt": "1"})
            await anyio.sleep(5.0)
        with suppress(StokerError):
            await fleet.complete({"prompt": "2"})

    run_virtual(body)
    late = {"activity": "wind_down", "grace": 10.0}
    metrics(Record(99, 9.0, "simulated-0", 2, Kind.OVERRUN, before="Stopped", after="Stopped", detail=late))
    return metrics
