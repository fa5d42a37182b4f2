"""A whole group on hosts and a network that are not there, and what must hold of it at every moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import httpx

from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig
from lifecycle.errors import StokerError
from lifecycle.group.chart import GROUP
from lifecycle.group.facts import EVENTS, GroupFacts
from lifecycle.group.group import Group
from lifecycle.group.roles import Role
from lifecycle.group.settings import GroupConfig
from lifecycle.group.worker import Worker
from lifecycle.journal import Kind, Record, replay
from lifecycle.testing import Life, SimulatedAdapter, SimulatedHost, SimulatedProcess
from tests.group.simulated_network import SimulatedNetwork

QUICK: dict[str, Any] = {
    "startup_timeout": 5.0, "no_progress_timeout": 5.0, "liveness_interval": 2.0, "liveness_timeout": 2.0,
    "stall_timeout": 5.0, "drain_timeout": 5.0, "terminate_timeout": 10.0, "backoff_initial": 1.0, "backoff_max": 2.0,
    "max_retries": 50,
}  # fmt: skip


class Adapter(SimulatedAdapter):
    """Only the head's member speaks HTTP."""

    def capabilities_for(self, config: ServerConfig) -> Capabilities:
        return replace(self.capabilities, probed=config.node_rank == 0)


class GroupWorld:
    """A group of `nodes` hosts. `errors` holds every rule that was broken."""

    def __init__(
        self, nodes: int, network: SimulatedNetwork, *, lives: dict[int, tuple[Life, ...]] | None = None,
        group: GroupConfig | None = None, name: str = "g", **settings: Any,
    ) -> None:  # fmt: skip
        self.name = name
        self.network = network
        self.hosts = [SimulatedHost((lives or {}).get(rank, (Life(ready=0.5),))) for rank in range(nodes)]
        adapter = Adapter(capabilities=Capabilities(ready_paths=("/health",), settings=frozenset({"nodes"})))
        config = ServerConfig("simulated", name=name, **{**QUICK, **settings})
        self.meeting = group or GroupConfig(gather_timeout=60.0, heartbeat_timeout=5.0)
        self.errors: list[str] = []
        roles = [Role(rank, nodes, "host-0", 1, "a test") for rank in range(nodes)]
        self.group = Group(
            config, roles[0], group=self.meeting, adapter=adapter, host=self.hosts[0], network=network.of("host-0"),
            listener=self._check, environ={},
        )  # fmt: skip
        self.group.client._http = httpx.AsyncClient(transport=self.hosts[0].transport())
        self.workers = [
            Worker(
                config, role, group=self.meeting, adapter=adapter, host=self.hosts[role.rank],
                network=network.of(f"host-{role.rank}"), environ={},
            )
            for role in roles[1:]
        ]  # fmt: skip
        self.answers = self.asked = 0
        self._answered_all = anyio.Event()

    def alive(self) -> list[int]:
        """The ranks on which a member's process lives."""
        return [rank for rank, host in enumerate(self.hosts) if any(process.alive for process in host.processes)]

    def process(self, rank: int) -> SimulatedProcess | None:
        """The living process of a rank."""
        return next((process for process in self.hosts[rank].processes if process.alive), None)

    def transitions(self) -> list[str]:
        """The states that the group has entered."""
        return [str(r.after) for r in self.group.journal.records if r.kind is Kind.TRANSITION]

    def seconds(self, state: str) -> list[float]:
        """When the group entered a state, in seconds since the beginning."""
        began = self.group.journal.records[0].time
        return [r.time - began for r in self.group.journal.records if r.kind is Kind.TRANSITION and r.after == state]

    def _check(self, record: Record) -> None:
        for rank, host in enumerate(self.hosts):
            living = [process for process in host.processes if process.alive]
            if len(living) > 1:
                self.errors.append(f"{len(living)} processes live on host {rank}")
            self.errors += host.ledger.violations
            host.ledger.violations.clear()
        if record.server != self.name or record.kind is not Kind.TRANSITION:
            return
        if record.after in ("Backoff", "Stopped", "Failed") and not record.detail.get("unseen"):
            alive = [rank for rank in self.alive() if rank == 0 or record.event == "AllEnded"]
            if alive:
                self.errors.append(f"{record.event} → {record.after}, and members live on hosts {alive}")
        if record.after == "Starting" and self.alive():
            self.errors.append(f"Starting, and members of an earlier attempt live on hosts {self.alive()}")
        if record.after == "Healthy" and 0 not in self.alive():
            self.errors.append("Healthy without the member that serves")

    async def ask(self, number: int) -> None:
        """One request, as long as it takes."""
        answer = await self.group.complete({"prompt": str(number)})
        assert answer["choices"]
        self.answers += 1
        if self.answers == self.asked:
            self._answered_all.set()

    async def _give_up_waiting(self, scope: anyio.CancelScope) -> None:
        await self.group.ended()
        scope.cancel()

    async def live(self, chaos: Any, requests: int = 0) -> None:
        """Run all of it while `chaos(self)` happens; then stop the head, wait for all to end, and check."""
        self.asked = requests
        async with anyio.create_task_group() as tasks:
            for worker in self.workers:
                tasks.start_soon(self.work, worker)
            async with self.group:
                async with anyio.create_task_group() as asking:
                    for number in range(requests):
                        asking.start_soon(self._try, number)
                    await chaos(self)
                    if self.answers < requests and self.group.state not in GROUP.final:
                        asking.start_soon(self._give_up_waiting, asking.cancel_scope)
                        with anyio.move_on_after(600):
                            await self._answered_all.wait()
                    asking.cancel_scope.cancel()
                if self.group.state not in GROUP.final:
                    await self.group.stop()
                await self.group.ended()
        self.check_end()

    async def _try(self, number: int) -> None:
        try:
            await self.ask(number)
        except StokerError as error:
            if self.group.state not in ("Failed", "Stopped") and not self.group.driver.facts.stopping:
                self.errors.append(f"request {number}: {error!r}")

    async def work(self, worker: Worker) -> None:
        """The life of a host that is not the head."""
        async with worker:
            await worker.ended()

    def check_end(self) -> None:
        """All have ended, nothing is held anywhere, the journal replays, no rule was broken."""
        driver = self.group.driver
        assert driver.state in GROUP.final
        assert all(worker.state in ("Stopped", "Failed") for worker in self.workers)
        for rank, host in enumerate(self.hosts):
            assert host.held() == (), f"host {rank} holds {host.held()}"
        stand = replay(self.group.journal.records, GROUP, EVENTS, GroupFacts)[self.name]
        assert (stand.state, stand.facts) == (driver.state, driver.facts)
        assert not self.errors, "; ".join(self.errors)
