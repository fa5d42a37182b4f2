"""What everything that serves has in common, be it one server, a group of servers on several hosts, or a fleet.

- `Replica`: has a life and takes requests at one URL through one gate. A `Server` is one; so is whatever else a fleet
  may hold in its slots.
- `Service`: has a life and takes requests by method. A `Server` is one as well, and so is a `Fleet`: the commands and
  people's programs use either alike.

Nothing has to inherit from these: the methods and attributes are enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, Self

from lifecycle.adapter import EngineLoad
from lifecycle.client import Client
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis
from lifecycle.gate import Gate
from lifecycle.journal import Journal, Record

Listener = Callable[[Record], None]
"""Called with every record of a journal; must be quick."""


class Living(Protocol):
    """Has a life: from the entry of its `async with` to "Stopped" or "Failed"."""

    async def __aenter__(self) -> Self:
        """Begin to start, and return at once."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain, end, release everything, whatever has happened."""
        ...

    async def healthy(self) -> object:
        """Wait until requests are served. Raises `StartFailed` if it was given up, `Draining` if it was stopped."""
        ...

    async def stop(self, within: float | None = None) -> object:
        """Drain and end. Returns when the drain has begun. Can be called again.

        Args:
            within: seconds after which somebody else ends everything; the latest number holds. None: as configured.
        """
        ...

    async def kill(self) -> object:
        """End now, whatever is in flight. Cuts a drain short."""
        ...

    async def ended(self) -> str:
        """Wait for the final state and return it: "Stopped" or "Failed". Everything is released by then."""
        ...

    async def load(self) -> EngineLoad | None:
        """What the engine says that it works on; None if it is not Healthy, or does not say."""
        ...

    @property
    def state(self) -> str: ...

    @property
    def waiting_for(self) -> str:
        """What the present state waits for, for people; empty if that is not known or nothing is waited for."""
        ...

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why it failed last, if it has."""
        ...

    @property
    def starts(self) -> int:
        """How many starts were begun so far."""
        ...


class Replica(Living, Protocol):
    """One place to send requests to.

    Its gate must follow its state: closed before the first request would be refused, cut when what is in flight is
    lost, open again when it is "Healthy".
    """

    @property
    def gate(self) -> Gate: ...

    @property
    def url(self) -> str:
        """Its base URL now, without /v1."""
        ...


class Service(Living, Protocol):
    """Takes requests."""

    @property
    def config(self) -> ServerConfig:
        """Of the server, or of each of the servers."""
        ...

    @property
    def client(self) -> Client: ...

    @property
    def journal(self) -> Journal:
        """What becomes of its own state, in order."""
        ...

    async def chat(self, payload: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]: ...

    async def complete(self, payload: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]: ...

    async def request(
        self, path: str, payload: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]: ...

    def stream(
        self, payload: Mapping[str, Any], *, path: str = "/v1/chat/completions", timeout: float | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]: ...
