"""Who may send a request now: nobody before Healthy, everybody while Healthy, nobody new once draining.

The gate also keeps count: how many requests are in flight, when one last got on, and how many the server can take at
once if it says that it has too many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Protocol

import anyio
import sniffio

from lifecycle.errors import Draining, StartFailed
from lifecycle.server_facts import Facts

TRUST = 0.1
"""Seconds for which a server that was seen to be there is not doubted again."""

STRIKES = 3
"""Attempts in a row that have failed for the server's own reasons before others of its fleet are preferred to it. One
alone may be the request's fault, or chance."""
REST, REST_MAX = 1.0, 60.0
"""Seconds for which they are; doubled each time that it has still not answered a request afterwards."""


@dataclass(frozen=True)
class Pass:
    """Leave to send one request to one life of the server."""

    url: str
    model: str
    life: int
    """Counts the times that the server became Healthy; a later one is another process."""
    gate: Gate
    """The gate of that server: it counts the request, cuts it when the server goes, and learns from its answer."""


class Admission(Protocol):
    """Who gives leave to send: the gate of one server, or what spreads requests over many (`lifecycle.fleet`)."""

    async def pass_through(self, tried: Collection[Gate] = ()) -> Pass:
        """Wait for leave to send.

        Args:
            tried: the gates through which earlier attempts of the same request went; empty for its first attempt.

        Whoever gets a `Pass` enters its gate before it waits for anything else, so that the next one to ask finds the
        request counted. Raises `Draining` once nothing new is taken, `StartFailed` once the server is given up.
        """
        ...

    @property
    def in_flight(self) -> int:
        """Requests that a server has now."""
        ...

    async def pause(self, seconds: float, tried: Collection[Gate]) -> None:
        """Wait before a further attempt, but no longer than it makes sense. Raises like `pass_through`."""
        ...


class Gate:
    """One for each server. Follows the server's state; everything else is asked by requests."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.in_flight = 0
        self.peak = 0
        self.progress_at = 0.0
        """Event loop time at which a request last began, got a byte or ended."""
        self.asked_at = -inf
        """Event loop time at which a request last began or ended."""
        self.tried = 0
        """Times that a token was asked for to see whether the engine gives any."""
        self.life = 0
        self.limit: float | None = None
        """Requests at once that the server can take, learnt from its 429 and 503; None: it has never complained."""
        self._safe: float | None = None
        """As many as it has taken without a complaint since."""
        self.strikes = 0
        """Attempts that have failed since it last answered one, other than for want of room."""
        self._rest, self._rests_until = 0.0, 0.0
        self._state = "Idle"
        self.facts = Facts()
        self._pass = Pass("", "", 0, self)
        self._clock: Callable[[], float] | None = None
        self._turn: anyio.Event | None = None
        """There while somebody waits for the gate's next change."""
        self._entries: set[Entry] = set()
        self.outside = 0
        """Others that send requests to the server past this gate (a router), and have not been seen to stop."""
        self.doubted = False
        """A request was broken off, and nobody has looked since whether the server is still there."""
        self._trusted_at = -inf
        self.look: Callable[[], None] | None = None
        """Called when somebody should; None: there is nobody who would, and nothing is doubted."""
        self.want: Callable[[], None] | None = None
        """Called when somebody waits for the server; None: there is nobody who would wake it."""
        self.watcher: Callable[[Gate], None] | None = None
        """Called at each change that may let a request in or out: the state, the number in flight, the limit."""

    def follow(self, state: str, facts: Facts, url: str) -> None:
        """The server's state has changed."""
        if state == "Healthy" != self._state:
            self.life += 1
            self._absolve()
        self._state, self.facts, self.doubted = state, facts, False
        self._pass = Pass(url, facts.model, self.life, self)
        self._ring()

    def cut(self) -> None:
        """End every attempt in flight: what it waited for is gone. The requests decide what to do next."""
        for entry in tuple(self._entries):
            entry.cut = True
            entry.scope.cancel()

    async def empty(self) -> None:
        """Return when no request is in flight, and nobody from outside can send another one."""
        while self.in_flight or self.outside:
            await self._change()

    def hold(self) -> None:
        """Requests are about to be sent past this gate: a drain waits for `let_go`."""
        self.outside += 1

    def let_go(self) -> None:
        """No more of them will be."""
        self.outside -= 1
        self._ring()

    async def until(self, holds: Callable[[Facts], bool]) -> None:
        """Return when what is known of the server is so."""
        while not holds(self.facts):
            await self._change()

    @property
    def is_open(self) -> bool:
        return self._state == "Healthy"

    async def opened(self) -> None:
        """Wait for Healthy. Raises like `pass_through`."""
        while not self.is_open:
            self.refuse_if_ending()
            await self._wanted()

    def room(self, *, again: bool = False) -> float:
        """How many more the server can be sent now. See `leave` for `again`."""
        limit = self._safe if again else self.limit
        if not self.is_open or (again and self.doubted):
            return 0
        return inf if limit is None else max(0, int(limit) - self.in_flight)

    @property
    def leave(self) -> Pass:
        """Leave to send now, for whoever has seen that there is `room`.

        A request that is sent `again` is not the one that finds out whether the server can take more than before: it
        would spend its retries on that.
        """
        return self._pass

    async def pass_through(self, tried: Collection[Gate] = ()) -> Pass:
        """See `Admission`."""
        while True:
            self.refuse_if_ending()
            if self.room(again=bool(tried)) > 0:
                return self._pass
            await self._wanted()

    async def pause(self, seconds: float, tried: Collection[Gate] = ()) -> None:
        """See `Admission`: as long as the server lives."""
        with anyio.move_on_after(seconds):
            while True:
                self.refuse_if_ending()
                await self._change()

    def refuse_if_ending(self) -> None:
        if self._state == "Failed" and self.facts.diagnosis is not None:
            raise StartFailed(self.facts.diagnosis)
        if self._state in ("Stopped", "Failed") or (self._state == "Draining" and self.facts.stopping):
            raise Draining(f"server {self.label!r} is {self._state.lower()} and takes no new requests")

    def entered(self, scope: anyio.CancelScope) -> Entry:
        """Count a request as in flight inside `with gate.entered(scope)`; `scope` is cancelled if its server goes."""
        return Entry(self, scope)

    def touch(self) -> None:
        """A request got on."""
        self.progress_at = self.now()

    def now(self) -> float:
        """The event loop's time, at a fraction of what `anyio.current_time` takes to find the loop each time."""
        if self._clock is None:
            native = sniffio.current_async_library() == "asyncio"
            self._clock = asyncio.get_running_loop().time if native else anyio.current_time
        return self._clock()

    def doubt(self) -> None:
        """A request was broken off. If the server has gone, all others will be: they must not spend their attempts
        before that is found out, so that whoever was sent already waits for `trust`, or for the server's next life."""
        if self.look is not None and self.is_open and not self.doubted and self.now() >= self._trusted_at + TRUST:
            self.doubted = True
            self.look()

    def trust(self) -> None:
        """The server was seen to be there."""
        self._trusted_at = self.now()
        if self.doubted:
            self.doubted = False
            self._ring()

    def overloaded(self) -> None:
        """The server refused one of the requests in flight for want of room: send no more at once than it holds."""
        held = max(1.0, self.in_flight - 1.0)
        self.limit = self._safe = held if self.limit is None else min(held, self.limit)

    def served(self) -> None:
        """The server answered. After a complaint, try for a little more: one more at once for each round of answers."""
        if self.strikes:
            self._absolve()
        if self.limit is not None and self.in_flight + 1 >= self.limit:
            self.limit += 1 / self.limit
            self._safe = self.limit - 1 if self._safe is None else max(self._safe, self.limit - 1)
            self._ring()

    def failed(self) -> None:
        """The server did not answer one of the requests in flight, or with an error of its own."""
        self.strikes += 1
        now = self.now()
        if self.strikes >= STRIKES and now >= self._rests_until:  # not once more for each that was in flight
            self._rest = min(REST_MAX, 2 * self._rest or REST)
            self._rests_until = now + self._rest

    @property
    def rests(self) -> bool:
        """Whether others should rather be asked now: it is doubted, or has answered nothing of late."""
        return self.doubted or (self.strikes >= STRIKES and self.now() < self._rests_until)

    def _absolve(self) -> None:
        self.strikes, self._rest, self._rests_until = 0, 0.0, 0.0

    async def _wanted(self) -> None:
        if self.want is not None:
            self.want()
        await self._change()

    async def _change(self) -> None:
        if self._turn is None:
            self._turn = anyio.Event()
        await self._turn.wait()

    def _ring(self) -> None:
        if self._turn is not None:
            self._turn.set()
            self._turn = None
        if self.watcher is not None:
            self.watcher(self)

    def _enter(self, entry: Entry) -> None:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        self._entries.add(entry)
        self.asked_at = self.now()
        self.touch()

    def _leave(self, entry: Entry) -> None:
        self.in_flight -= 1
        self._entries.discard(entry)
        self.asked_at = self.now()
        self.touch()
        self._ring()


class Entry:
    """One request in flight."""

    __slots__ = ("_gate", "cut", "scope")

    def __init__(self, gate: Gate, scope: anyio.CancelScope) -> None:
        self._gate = gate
        self.scope = scope
        self.cut = False
        """Its server has gone: that is why its scope was cancelled."""

    def __enter__(self) -> Entry:
        self._gate._enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._gate._leave(self)
