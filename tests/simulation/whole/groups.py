"""Groups of hosts on the machine of a world: each host's command is a manager of its own, which may be killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig
from lifecycle.group.group import Group
from lifecycle.group.roles import Role
from lifecycle.group.settings import GroupConfig
from lifecycle.group.worker import Worker
from lifecycle.service import Listener
from tests.group.simulated_group import Adapter
from tests.group.simulated_network import SimulatedNetwork
from tests.simulation.whole.machine import Machine, Manager, Place

MEETING = GroupConfig(gather_timeout=60.0, heartbeat_timeout=5.0)
ADAPTER = Adapter(capabilities=Capabilities(ready_paths=("/health",), settings=frozenset({"nodes"})))
AGAIN = 2.0
"""Seconds after which a host's command that has ended is started again, as a batch system does."""
Command = Callable[[Manager, Any], Any]


class Crew:
    """The hosts of one group but for its head, as long as the head's manager lives."""

    def __init__(
        self, head: Manager, config: ServerConfig, nodes: int, listen: Callable[[Manager], Listener]
    ) -> None:
        machine = head.machine
        self.head = head
        self.config = config
        self.listen = listen
        self.network = SimulatedNetwork(lambda: latency(machine))
        self.roles = [Role(rank, nodes, "host-0", 1, "a simulation") for rank in range(nodes)]
        place = Place(head)
        self.group = Group(
            config, self.roles[0], group=MEETING, adapter=ADAPTER, host=place, network=self.network.of("host-0"),
            listener=listen(head), environ={},
        )  # fmt: skip
        place.serves = lambda: self.group.state
        self.managers: dict[int, Manager] = {}
        head.on_death.append(lambda: self.network.reset("host-0"))

    def worker(self, rank: int) -> tuple[Manager, Worker]:
        """A new command on a host."""
        manager = Manager(self.head.machine, f"{self.config.label}-h{rank}")
        manager.on_death.append(lambda: self.network.reset(f"host-{rank}"))
        self.managers[rank] = manager
        worker = Worker(
            self.config, self.roles[rank], group=MEETING, adapter=ADAPTER, host=Place(manager),
            network=self.network.of(f"host-{rank}"), environ={}, listener=self.listen(manager),
        )  # fmt: skip
        return manager, worker

    async def keep(self, rank: int, command: Command, over: anyio.Event) -> None:
        """Start the host's command, again when it has ended, until the head's is over."""
        while not (over.is_set() or self.head.dead):
            manager, worker = self.worker(rank)

            async def live(manager: Manager, worker: Worker = worker) -> None:
                async with worker:
                    await worker.ended()

            await command(manager, live)
            await anyio.sleep(AGAIN)

    async def pull(self, rank: int, seconds: float) -> None:
        """Pull a cable for a while."""
        self.network.unplug(f"host-{rank}")
        await anyio.sleep(seconds)
        self.network.plug(f"host-{rank}")


def latency(machine: Machine) -> float:
    usual = machine.random.uniform(0.0002, 0.01)
    return usual + (machine.random.expovariate(0.5) if machine.happens("delayed") else 0.0)
