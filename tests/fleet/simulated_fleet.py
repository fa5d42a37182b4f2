"""A real `Fleet` of simulated servers, its callers, and the rules that hold at each moment of its life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx

from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig
from lifecycle.errors import Draining, RequestError, StartFailed
from lifecycle.fleet import Fleet
from lifecycle.fleet.chart import FLEET
from lifecycle.fleet.facts import EVENTS, FleetFacts
from lifecycle.journal import Record, replay
from lifecycle.server import Server
from lifecycle.testing import Life, SimulatedAdapter, SimulatedHost, SimulatedProcess

QUICK: dict[str, Any] = {
    "startup_timeout": 5.0, "no_progress_timeout": 5.0, "liveness_interval": 1.0, "liveness_timeout": 1.0,
    "stall_timeout": 3.0, "drain_timeout": 4.0, "backoff_initial": 1.0, "max_attempts": 5, "attempt_window": 20.0,
    "max_retries": 60,
}  # fmt: skip
"""Short times. Retries enough that no crash of a replica may cost a request its answer."""


class FleetWorld:
    """`errors` holds every rule that was broken; `outcomes` what became of each request, by its number."""

    def __init__(
        self,
        lives: Sequence[Life],
        *,
        replicas: int,
        min_healthy: int = 1,
        cap: int | None = None,
        journal: Path | None = None,
        compiles: str = "",
        **settings: Any,
    ) -> None:
        self.host = SimulatedHost(lives)
        self.records: list[Record] = []
        self.cap = cap
        self.fleet = Fleet(
            ServerConfig("simulated", **{**QUICK, **settings}),
            replicas=replicas,
            min_healthy=min_healthy,
            cap=cap,
            adapter=SimulatedAdapter(compiles=compiles, capabilities=Capabilities(ready_paths=("/health",))),
            host=self.host,
            journal=journal,
            listener=self.records.append,
        )
        self.fleet.client._http = httpx.AsyncClient(transport=self.host.transport())
        self.host.on_request = self._check_request
        self.errors: list[str] = []
        self.outcomes: dict[int, list[object]] = {}
        self.reached: Counter[str] = Counter()
        """Requests that have arrived, by the name of the replica."""

    def server(self, number: int) -> Server:
        replica = self.fleet.slots[number].replica
        assert isinstance(replica, Server)
        return replica

    def process(self, number: int) -> SimulatedProcess | None:
        """The process of a replica, if it has one now."""
        process = self.server(number).activities.process
        assert process is None or isinstance(process, SimulatedProcess)
        return process

    def crash(self, number: int, code: int = -9) -> None:
        """Whatever the replica is doing, its process dies now."""
        process = self.process(number)
        if process is not None and process.running:
            process.exit(code)

    async def ask(self, number: int) -> None:
        """A caller, who gets one answer or one error that says why there is none."""
        try:
            answer: object = await self.fleet.complete({"prompt": f"{number}"})
        except (StartFailed, Draining, RequestError) as error:
            answer = error
        self.outcomes.setdefault(number, []).append(answer)

    async def ask_many(self, requests: int, workers: int, gap: float = 0.0) -> None:
        """So many requests, by so many callers at once, each of whom waits for `gap` seconds between two."""
        left = iter(range(requests))

        async def work() -> None:
            for number in left:
                await self.ask(number)
                await anyio.sleep(gap)

        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(work)

    def _check_request(self, process: SimulatedProcess) -> None:
        numbers = [at for at in range(len(self.fleet.slots)) if self.process(at) is process]
        if not numbers:
            self.errors.append(f"a request reached process {process.pid}, which is no replica's now")
            return
        server = self.server(numbers[0])
        self.reached[server.config.label] += 1
        # A drain ends when what is in flight has ended: what was given leave before it began may arrive in it.
        if server.state not in ("Healthy", "Draining"):
            self.errors.append(f"a request reached {server.config.label}, which is {server.state}")
        if self.cap is not None and server.gate.in_flight > self.cap:
            self.errors.append(f"{server.gate.in_flight} requests at {server.config.label}, cap = {self.cap}")

    def check(self) -> None:
        """No rule is broken now."""
        self.errors += self.host.ledger.violations
        serving = {slot.name for slot in self.fleet.slots if slot.replica.state == "Healthy"}
        open_now = {slot.name for slot in self.fleet.slots if slot.replica.gate.is_open}
        if serving != open_now:
            self.errors.append(f"{open_now} are open, {serving} are Healthy")
        assert not self.errors, "; ".join(self.errors)

    def check_end(self, requests: int) -> None:
        """The fleet has ended, nothing is held, the journal replays, and each request has had one outcome."""
        self.check()
        driver = self.fleet.driver
        assert driver.state in FLEET.final
        assert self.host.held() == ()
        assert driver.open_activities == ()
        assert (self.fleet.dispatch.in_flight, self.fleet.dispatch.waiting) == (0, 0)
        stand = replay(self.fleet.journal.records, FLEET, EVENTS, FleetFacts)[self.fleet.config.label]
        assert (stand.state, stand.facts) == (driver.state, driver.facts)
        assert {number: len(outcome) for number, outcome in self.outcomes.items()} == dict.fromkeys(range(requests), 1)

    @property
    def unanswered(self) -> list[object]:
        """What was said instead of an answer."""
        return [outcome for (outcome,) in self.outcomes.values() if not isinstance(outcome, dict)]
