"""One place in a fleet: a replica now, another one after a restart."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from lifecycle.chart import Event
from lifecycle.fleet.dispatch import Dispatch
from lifecycle.fleet.facts import ReplicaAway, ReplicaHealthy, ReplicaLost
from lifecycle.service import Replica


class Slot:
    """Keeps one replica at a time, and says what becomes of it.

    Args:
        name: the name of every replica that it holds.
        make: makes a replica that has not begun yet. Called for the first one at once, so that what is wrong with the
            configuration is told before anything has started.
    """

    def __init__(self, name: str, make: Callable[[], Replica]) -> None:
        self.name = name
        self.replica = make()
        self.over = anyio.Event()
        """Set while no replica lives here and none is about to."""
        self._make = make
        self._next: Replica | None = None
        self._closed = False
        self._earlier = 0
        self._within: float | None = None
        self._stop, self._kill, self._renewed = anyio.Event(), anyio.Event(), anyio.Event()

    @property
    def starts(self) -> int:
        """How many starts were begun here, by all replicas so far."""
        return self._earlier + self.replica.starts

    async def keep(self, dispatch: Dispatch, post: Callable[[Event], None]) -> None:
        """Let replicas live here, one after the other; `post` is told what becomes of them. Runs until cancelled."""
        while True:
            await self._live(self.replica, dispatch, post)
            if self._next is None:
                self.over.set()
                if self._closed:
                    return
                failed = self.replica.state == "Failed"
                post(ReplicaLost(self.name, self.replica.diagnosis if failed else None))
                await self._renewed.wait()
            if self._next is None:  # closed meanwhile
                return
            self._earlier += self.replica.starts
            self.replica, self._next = self._next, None
            self._stop, self._kill, self._renewed = anyio.Event(), anyio.Event(), anyio.Event()
            self.over = anyio.Event()
            post(ReplicaAway(self.name))

    async def _live(self, replica: Replica, dispatch: Dispatch, post: Callable[[Event], None]) -> None:
        def changed(is_open: bool) -> None:
            post(ReplicaHealthy(self.name) if is_open else ReplicaAway(self.name))

        try:
            async with replica:
                dispatch.add(replica.gate, changed)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._stop_when_told, replica)
                    group.start_soon(self._kill_when_told, replica)
                    await replica.ended()
                    group.cancel_scope.cancel()
        finally:
            dispatch.remove(replica.gate)

    async def _stop_when_told(self, replica: Replica) -> None:
        while True:
            await self._stop.wait()
            self._stop = anyio.Event()
            await replica.stop(self._within)

    async def _kill_when_told(self, replica: Replica) -> None:
        await self._kill.wait()
        await replica.kill()

    def close(self, *, within: float | None, kill: bool) -> None:
        """Drain and end the replica, or end it now; no other one follows it. Can be said again, see `Living.stop`."""
        self._closed, self._next, self._within = True, None, within
        self._stop.set()
        if kill:
            self._kill.set()

    def renew(self) -> Replica:
        """Drain and end the replica, if it lives, and begin another one: that is returned. Raises `ConfigError`, and
        leaves the old one as it is, if none can be made."""
        self._next = self._make()
        self._stop.set()
        self._renewed.set()
        return self._next
