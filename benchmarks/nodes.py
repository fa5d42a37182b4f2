"""A thousand simulated nodes under one client: groups of several hosts each, which fail at random, and a job's records.

The real fleet, dispatch, groups, meetings, servers and drivers; hosts, processes, network and clock are simulated. Each
node fails once in `MTBF` hours on average: its process dies, its cable is pulled for a while, or its connections are
reset. No record may be lost or answered twice, and every group must end in a final state with nothing held anywhere.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import anyio
import httpx

from benchmarks.figures import Figure
from lifecycle.config import ServerConfig
from lifecycle.fleet import Fleet
from lifecycle.group.settings import GroupConfig
from lifecycle.service import Listener, Replica
from lifecycle.testing import Life, SimulatedAdapter, run_virtual
from tests.group.simulated_group import QUICK, GroupWorld
from tests.group.simulated_network import SimulatedNetwork

GROUPS, NODES = 250, 4
MTBF = 0.5
"""Hours. Real nodes fail once in months."""
RECORDS, IN_FLIGHT = 6_000, 1000
REPLY = 15.0
"""Seconds for one answer."""
SEED = 1
LONG = {"liveness_interval": 10.0, "liveness_timeout": 10.0, "stall_timeout": 60.0, "max_attempts": 20}


@dataclass
class Seen:
    """What came of it."""

    answers: Counter[int] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    states: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Nodes(httpx.AsyncBaseTransport):
    """All groups, each in a slot of one fleet."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.worlds: list[GroupWorld] = []
        self.seen = Seen()
        self._transports: dict[str, httpx.AsyncBaseTransport] = {}

    def make(self, number: int, config: ServerConfig, listener: Listener) -> Replica:
        """A group with a network of its own, whose head has an address of its own."""
        address = f"10.{number // 250}.{number % 250}.1"
        network = SimulatedNetwork(lambda: self.random.uniform(0.0002, 0.01))
        lives: dict[int, tuple[Life, ...]] = {
            rank: (Life(ready=self.random.uniform(1, 20), reply=REPLY),) for rank in range(NODES)
        }
        world = GroupWorld(
            NODES, network, lives=lives,
            group=GroupConfig(gather_timeout=300.0, heartbeat_timeout=30.0), name=config.label, host=address,
            allow_exposed=True, startup_timeout=120.0, no_progress_timeout=120.0, **LONG,
        )  # fmt: skip
        self._transports[address] = world.hosts[0].transport()
        self.worlds.append(world)
        return world.group

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transports[request.url.host].handle_async_request(request)

    async def run(self) -> Seen:
        """The whole job, and the end of everything."""
        began = anyio.current_time()
        config = ServerConfig("simulated", name="n", **{**QUICK, **LONG, "max_retries": 1000})
        fleet = Fleet(config, replicas=GROUPS, adapter=SimulatedAdapter(), make=self.make)
        fleet.client._http = httpx.AsyncClient(transport=self)
        async with anyio.create_task_group() as hosts:
            for world in self.worlds:
                for worker in world.workers:
                    hosts.start_soon(world.work, worker)
            async with fleet, anyio.create_task_group() as chaos:
                chaos.start_soon(self._fail)
                async with anyio.create_task_group() as callers:
                    left = iter(range(RECORDS))
                    for _ in range(IN_FLIGHT):
                        callers.start_soon(self._ask, fleet, left)
                chaos.cancel_scope.cancel()
            for world in self.worlds:
                for rank in range(NODES):
                    world.network.plug(f"host-{rank}")
        for world in self.worlds:
            world.check_end()
            self.seen.states[world.group.state] += 1
            self.seen.restarts += world.group.starts - 1
        self.seen.seconds = anyio.current_time() - began
        return self.seen

    async def _ask(self, fleet: Fleet, left: Iterator[int]) -> None:
        for number in left:
            answer = await fleet.complete({"prompt": str(number)})
            assert answer["choices"]
            self.seen.answers[number] += 1

    async def _fail(self) -> None:
        """Failures at random times, on random nodes."""
        async with anyio.create_task_group() as cables:
            while True:
                await anyio.sleep(self.random.expovariate(GROUPS * NODES / (3600 * MTBF)))
                world, rank = self.random.choice(self.worlds), self.random.randrange(NODES)
                kind = self.random.choice(("process", "cable", "reset"))
                self.seen.failures[kind] += 1
                if kind == "process":
                    process = world.process(rank)
                    if process is not None and process.running:
                        process.exit(-9)
                elif kind == "reset":
                    world.network.reset(f"host-{rank}")
                else:
                    cables.start_soon(self._pull, world.network, f"host-{rank}")

    async def _pull(self, network: SimulatedNetwork, host: str) -> None:
        network.unplug(host)
        await anyio.sleep(self.random.uniform(1, 120))
        network.plug(host)


def measure() -> list[Figure]:
    before = os.times()
    seen = run_virtual(Nodes(SEED).run, seed=SEED, limit=1e6)
    after = os.times()
    lost = RECORDS - len(seen.answers)
    doubled = sum(count - 1 for count in seen.answers.values())
    what, final = f"{GROUPS * NODES:,} simulated nodes", seen.states.total()
    failed = ", ".join(f"{count} {kind}" for kind, count in sorted(seen.failures.items()))
    return [
        Figure(f"{what}, one failure of each in {MTBF:g} hours: records lost or doubled", lost + doubled, "", 0),
        Figure(f"{what}: groups of {NODES} that ended in a final state", final, "", GROUPS, at_least=True),
        Figure(f"{what}: restarts of groups, of failures: {failed}", seen.restarts, ""),
        Figure(f"{what}, {seen.seconds / 60:.0f} minutes of virtual time, {RECORDS:,} records: CPU",
               after.user + after.system - before.user - before.system, "s", 60),
    ]  # fmt: skip
