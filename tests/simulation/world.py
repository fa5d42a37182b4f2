"""A real `Server` on a simulated host, and what must hold after each step of its life."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import httpx

from lifecycle.adapter import Capabilities, Post
from lifecycle.config import ServerConfig
from lifecycle.journal import Kind, Record, replay
from lifecycle.server import Server
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from lifecycle.testing import Life, SimulatedAdapter, SimulatedHost, SimulatedProcess

QUICK: dict[str, Any] = {
    "startup_timeout": 3.0, "no_progress_timeout": 3.0, "liveness_interval": 1.0, "liveness_timeout": 1.0,
    "stall_timeout": 2.0, "drain_timeout": 5.0, "backoff_initial": 1.0, "max_attempts": 2,
}  # fmt: skip
"""Short times: less virtual time means fewer probes to run."""
SLEEP: Post = ("/sleep", {})
WAKE: Post = ("/wake", {})
REFUSABLE = ("Start", "Sleep", "Wake")
"""What a caller may ask for at a moment when it makes no sense."""
AT_REST = ("Idle", "Dormant", "Backoff", "Stopped", "Failed")
WITH_PORTS = ("Adopting", "PortBound", "Starting", "Healthy", "Asleep", "Draining")


class World:
    """A server on a host that is not there; `errors` holds every rule that was broken."""

    def __init__(
        self,
        *lives: Life,
        endpoint: Life | None = None,
        compiles: str = "cache",
        roll: float = 1.0,
        capabilities: Mapping[str, Any] | None = None,
        host: SimulatedHost | None = None,
        attach: bool = False,
        **settings: Any,
    ) -> None:
        self.host = host or SimulatedHost(lives, endpoint=endpoint)
        self.adapter = SimulatedAdapter(
            compiles=compiles,
            capabilities=Capabilities(
                local=endpoint is None,
                ready_paths=("/health",),
                **{"sleep": SLEEP, "wake": WAKE, **(capabilities or {})},
            ),
        )
        if endpoint is not None:
            settings["base_url"] = "http://127.0.0.1:1"
        config = ServerConfig("simulated", **{**QUICK, **settings})
        self.server = Server(config, adapter=self.adapter, host=self.host, listener=self._check, attach=attach)
        self.server.activities._roll = lambda: roll
        self.server.client._http = httpx.AsyncClient(transport=self.host.transport())
        self.host.on_request = self._check_request
        self.errors: list[str] = []
        self.locked = False

    @property
    def records(self) -> list[Record]:
        return list(self.server.journal.records)

    def transitions(self) -> list[tuple[str | None, str | None]]:
        return [(r.event, r.after) for r in self.records if r.kind is Kind.TRANSITION]

    def times(self, state: str) -> list[float]:
        """When a state was entered, in seconds since the beginning."""
        began = self.records[0].time
        return [r.time - began for r in self.records if r.kind is Kind.TRANSITION and r.after == state]

    def _check(self, record: Record) -> None:
        state, held, ledger = self.server.state, self.host.held(), self.host.ledger
        alive = [process for process in self.host.processes if process.alive]
        leases = {hold.name for hold in ledger.open("lease")}
        locks = ledger.open("lock")
        self._rule(state not in AT_REST or not held, f"{record.kind} in {state}: {held} is held")
        self._rule(state in WITH_PORTS or not leases, f"ports are held in {state}")
        self._rule(len(alive) <= 1, f"{len(alive)} processes live")
        self._rule(all(str(process.port) in leases for process in alive), f"a process without its port in {state}")
        if alive and state == "Starting" and record.kind is Kind.TRANSITION:
            done = "cache" in self.host.complete_caches or not self.adapter.compiles or record.event == "Adopted"
            self._rule(bool(locks) or done, "a process starts without the compile lock")
        if record.kind is Kind.TRANSITION and state in ("Starting", "Healthy") and self.server.driver.facts.local:
            self._rule(bool(leases), f"no port in {state}")
        self._rule(record.kind is not Kind.REFUSED or record.event in REFUSABLE, f"{state} refuses {record.event}")
        self.errors += ledger.violations
        ledger.violations.clear()

    def _check_request(self, process: SimulatedProcess) -> None:
        state = self.server.state
        self._rule(state == "Healthy" or (state == "Draining" and process.running), f"a request is sent in {state}")

    def _rule(self, holds: bool, broken: str) -> None:
        if not holds:
            self.errors.append(broken)

    def check_end(self) -> None:
        """The server has ended: nothing is held, its journal replays to where it stands, and no rule was broken."""
        driver, journal = self.server.driver, self.records
        self.errors += self.host.ledger.violations
        self._rule(self.server.state in SERVER.final, f"it ended in {self.server.state}")
        self._rule(self.host.held() == (), f"{self.host.held()} is held at the end")
        self._rule(driver.open_activities == (), f"{driver.open_activities} are at work at the end")
        stand = replay(journal, SERVER, EVENTS, Facts)[self.server.config.label]
        self._rule((stand.state, stand.facts) == (driver.state, driver.facts), f"the journal replays to {stand}")
        self._rule(all(one.time <= two.time for one, two in pairwise(journal)), "the time of a record goes back")
        self._rule([record.seq for record in journal] == list(range(1, len(journal) + 1)), "a record is missing")
        assert not self.errors, "; ".join(self.errors)
