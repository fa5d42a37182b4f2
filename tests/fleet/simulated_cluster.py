"""A cluster that is not there: nodes with so many places each, actors on them that host simulated servers, and nodes
that die. On virtual time, and on any event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from lifecycle.adapter import EngineLoad
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.ray.actor import News, Reporter
from lifecycle.ray.place import NoPlace, PlaceLost
from lifecycle.server import Server
from lifecycle.testing import SimulatedAdapter, SimulatedHost

POLL = 1.0


class SimulatedCluster:
    """Implements `lifecycle.ray.place.Cluster`.

    Args:
        host: on which all servers are, whatever their node.
        nodes: how many places each node has, by name.
        delay: seconds from a free place to the actor on it.
        notice: seconds until the driver is told that a node has died.
    """

    def __init__(
        self, group: TaskGroup, host: SimulatedHost, nodes: Mapping[str, int], *, delay: float = 0.5,
        notice: float = 0.2, adapter: SimulatedAdapter | None = None,
    ) -> None:  # fmt: skip
        self.group = group
        self.host = host
        self.nodes = dict(nodes)
        self.places: list[SimulatedPlace] = []
        self.inside = 0
        self.adapter = adapter or SimulatedAdapter()
        self.notice = notice
        self._delay = delay
        self._more = anyio.Event()

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """See `lifecycle.ray.place.Cluster`."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def take(
        self, needs: Mapping[str, float], timeout: float, waiting: Callable[[str], None], avoid: Collection[str] = ()
    ) -> SimulatedPlace:
        """See `lifecycle.ray.place.Cluster`."""
        if avoid and set(self.nodes) <= set(avoid):
            raise NoPlace(Diagnosis("no-other-node", "there is no other node", Verdict.HOPELESS))
        with anyio.move_on_after(timeout):
            while not (free := [node for node in self._free() if node not in avoid]):
                waiting("no place is free")
                await self._more.wait()
            place = SimulatedPlace(self, free[0])
            self.places.append(place)
            try:
                await anyio.sleep(self._delay)
                if place.dead:
                    raise NoPlace(Diagnosis("actor-start", "its node has died"))
            except BaseException:
                await place.release()
                raise
            return place
        raise NoPlace(Diagnosis("no-resources", "no place is free", Verdict.HOPELESS))

    def _free(self) -> list[str]:
        return [name for name, count in self.nodes.items() if sum(p.node == name for p in self.places) < count]

    def changed(self) -> None:
        self._more.set()
        self._more = anyio.Event()

    def lose(self, node: str) -> None:
        """It dies with all that is on it."""
        self.nodes.pop(node, None)
        for place in [place for place in self.places if place.node == node]:
            place.die()

    def add(self, node: str, places: int) -> None:
        self.nodes[node] = places
        self.changed()


class SimulatedPlace:
    """Implements `lifecycle.ray.place.Place`."""

    def __init__(self, cluster: SimulatedCluster, node: str) -> None:
        self.node = self.node_id = node
        self.pid = 1
        self.dead = False
        self.cut_off = False
        """Its server cannot be reached from here, although its actor can."""
        self.server: Server | None = None
        self._cluster = cluster
        self._reporter = Reporter()
        self._gone = anyio.Event()
        self._over = anyio.Event()

    def die(self) -> None:
        """The server goes with it, at once; the driver is told later."""
        self.dead = True
        self._cluster.group.start_soon(self._die)

    async def _die(self) -> None:
        if self.server is not None:
            await self.server.kill()
        await anyio.sleep(self._cluster.notice)
        self._gone.set()

    async def start(self, config: ServerConfig, variables: Mapping[str, str], key: str | None) -> str:
        """See `lifecycle.ray.actor.Hosted`."""
        await self._live()
        self.server = self._reporter.server = Server(
            config, adapter=self._cluster.adapter, host=self._cluster.host, listener=self._reporter.hear
        )
        self._cluster.group.start_soon(self._host, self.server)
        return ""

    async def _host(self, server: Server) -> None:
        async with server:
            await server.ended()
        self._over.set()

    async def _live(self) -> None:
        """Wherever the driver waits for an answer of a dead node, it waits until the node is known to be dead."""
        await anyio.lowlevel.checkpoint()
        if self.dead:
            await self._gone.wait()
            raise PlaceLost("its node has died")

    async def news(self, after: int) -> list[News]:
        """See `lifecycle.ray.actor.Hosted`."""
        await self._live()
        found = await self._reporter.after(after, POLL)
        await self._live()  # what a node said when it died, nobody has heard
        return found

    async def stop(self, within: float | None) -> None:
        """See `lifecycle.ray.actor.Hosted`."""
        await self._live()
        assert self.server is not None
        await self.server.stop(within)

    async def kill(self) -> None:
        """See `lifecycle.ray.actor.Hosted`."""
        await self._live()
        assert self.server is not None
        await self.server.kill()

    async def load(self) -> EngineLoad | None:
        """See `lifecycle.ray.actor.Hosted`."""
        await self._live()
        return await self.server.load() if self.server is not None else None

    async def answers(self, url: str) -> bool:
        """See `lifecycle.ray.place.Place`."""
        await anyio.lowlevel.checkpoint()
        return not self.dead and not self.cut_off and await self._cluster.host.prober(url, None).listening()

    async def release(self) -> None:
        """See `lifecycle.ray.place.Place`."""
        with anyio.CancelScope(shield=True):
            if self.server is not None:
                await self.server.kill()
                await self._over.wait()
        if self in self._cluster.places:
            self._cluster.places.remove(self)
        self._cluster.changed()
