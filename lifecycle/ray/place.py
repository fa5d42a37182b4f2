"""What a replica needs from a cluster, as narrow protocols: Ray in production, a simulated one in tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from lifecycle.adapter import EngineLoad
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis
from lifecycle.ray.actor import News


class NoPlace(Exception):
    """The cluster has no place for a replica, or not one that can host it."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.summary)
        self.diagnosis = diagnosis


class PlaceLost(Exception):
    """The actor, its process or its node has gone."""


class Place(Protocol):
    """An actor on a node, with what the replica needs there."""

    node: str
    """The node's address."""
    node_id: str
    """As the cluster names it."""
    pid: int

    async def start(self, config: ServerConfig, variables: Mapping[str, str], key: str | None) -> str:
        """See `lifecycle.ray.actor.Hosted`, as for all of these. Each raises `PlaceLost`."""
        ...

    async def news(self, after: int) -> list[News]: ...

    async def stop(self, within: float | None) -> None: ...

    async def kill(self) -> None: ...

    async def load(self) -> EngineLoad | None: ...

    async def answers(self, url: str) -> bool:
        """Whether anything accepts connections from here at the server's URL. Raises nothing."""
        ...

    async def release(self) -> None:
        """End the server if it lives, and the actor, and give back what they held. Never raises `PlaceLost`."""
        ...


class Cluster(Protocol):
    """Where places are had."""

    def joined(self) -> AbstractAsyncContextManager[None]:
        """Connected for as long as anybody is inside. Raises `NoPlace`."""
        ...

    async def take(
        self, needs: Mapping[str, float], timeout: float, waiting: Callable[[str], None], avoid: Collection[str] = ()
    ) -> Place:
        """Wait for a place that has all of this on one node, and for the actor there.

        Args:
            timeout: seconds.
            waiting: told what is missing, as long as it is.
            avoid: ids of nodes that will not do. If they are all that could ever do, there is no wait.

        Raises `NoPlace`. Cancelled half way, it leaves nothing behind.
        """
        ...
