"""Which replica gets the next request: the least loaded of those that can take one.

Load is what the client itself has in flight there: it is known at once and exactly, and equal replicas with equally
many requests are equally loaded. A tie goes to the one that was sent fewest, so that equal replicas stay equal also
where there is little to do. What the engines say of their own work is not asked: it is old when it arrives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from math import inf

import anyio

from lifecycle.errors import Draining, StartFailed
from lifecycle.fleet.facts import FleetFacts
from lifecycle.gate import Gate, Pass


class Dispatch:
    """Gives leave to send, over a set of gates that changes. Implements `lifecycle.gate.Admission`.

    Args:
        label: the fleet's name, for messages.
        cap: most requests in flight at one replica. None: as many as it takes.
    """

    def __init__(self, label: str, cap: int | None = None) -> None:
        self.label = label
        self._cap = inf if cap is None else cap
        self._seats: list[_Seat] = []
        self._state, self._facts = "Idle", FleetFacts()
        self._waiting: OrderedDict[anyio.Event, bool] = OrderedDict()
        """Requests that wait for room, the first to come first, and whether each was sent before."""
        self._news = anyio.Event()
        """Set when a gate opens, closes, comes or goes, or the fleet's state changes."""

    def follow(self, state: str, facts: FleetFacts) -> None:
        """The fleet's state has changed."""
        self._state, self._facts = state, facts
        self._tell()

    def add(self, gate: Gate, told: Callable[[bool], None] = lambda is_open: None) -> None:
        """From now on requests may go through `gate`, whenever it is open; `told` whenever it opens or closes."""
        seat = _Seat(gate, told)
        self._seats.append(seat)
        gate.watcher = lambda gate: self._changed(seat)
        self._changed(seat)

    def remove(self, gate: Gate) -> None:
        """No request goes there any more."""
        gate.watcher = None
        self._seats = [seat for seat in self._seats if seat.gate is not gate]
        self._tell()

    @property
    def open(self) -> tuple[Gate, ...]:
        """The gates of the replicas that serve now."""
        return tuple(seat.gate for seat in self._seats if seat.gate.is_open)

    @property
    def in_flight(self) -> int:
        return sum(seat.gate.in_flight for seat in self._seats)

    @property
    def waiting(self) -> int:
        """Requests that wait until a replica can take them."""
        return len(self._waiting)

    def refuse_if_ending(self) -> None:
        state, facts = self._state, self._facts
        if state in ("Draining", "Failed") and not facts.stopping and facts.diagnosis is not None:
            raise StartFailed(facts.diagnosis)
        if state in ("Draining", "Stopped", "Failed"):
            raise Draining(f"fleet {self.label!r} is {state.lower()} and takes no new requests")

    async def pass_through(self, tried: Collection[Gate] = ()) -> Pass:
        """See `Admission`. Requests that must wait get their turn in the order in which they came."""
        self.refuse_if_ending()
        if not self._waiting:
            seat = self._choose(tried)
            if seat is not None:
                return seat.leave()
        first = False
        while True:
            await self._turn(again=bool(tried), first=first)
            self.refuse_if_ending()
            seat = self._choose(tried)
            if seat is not None:
                return seat.leave()
            first = True  # somebody was faster

    async def pause(self, seconds: float, tried: Collection[Gate]) -> None:
        """See `Admission`: no wait at all if a replica that the request has not been sent to can take it now."""
        with anyio.move_on_after(seconds):
            while True:
                self.refuse_if_ending()
                if any(self._fits(seat.gate, tried) for seat in self._seats):
                    return
                await self._news.wait()

    def _fits(self, gate: Gate, tried: Collection[Gate]) -> bool:
        return gate not in tried and not gate.rests and self._room(gate, again=True) > 0

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when something is so that depends on which gates are open. Raises like `pass_through`."""
        while not holds():
            self.refuse_if_ending()
            await self._news.wait()

    def _choose(self, tried: Collection[Gate]) -> _Seat | None:
        """The best one; None if there is no room. A replica that a request has failed at is its last choice, and one
        that rests is everybody's: a replica that fails at once would otherwise be the least loaded, and get them all.
        """
        best: _Seat | None = None
        least = (False, False, inf, inf)
        for seat in self._seats:
            gate = seat.gate
            if self._room(gate, again=bool(tried)) > 0:
                key = (gate in tried, gate.rests, gate.in_flight, seat.sent)
                if best is None or key < least:
                    best, least = seat, key
        return best

    def _room(self, gate: Gate, *, again: bool) -> float:
        return min(gate.room(again=again), self._cap - gate.in_flight)

    def _changed(self, seat: _Seat) -> None:
        """A gate opened or closed, a request came or went, or a limit moved."""
        if seat.gate.is_open is not seat.open:
            seat.open = seat.gate.is_open
            if seat.open:  # what it has missed is not made up for: it would get every request until it is level
                others = [each.sent for each in self._seats if each.open and each is not seat]
                seat.sent = max(seat.sent, min(others, default=0))
            seat.told(seat.open)
            self._tell()
        elif self._waiting:
            self._let_in()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()
        if self._waiting:
            self._let_in()

    async def _turn(self, *, again: bool, first: bool) -> None:
        turn = anyio.Event()
        self._waiting[turn] = again
        if first:
            self._waiting.move_to_end(turn, last=False)
        self._let_in()
        try:
            await turn.wait()
        except BaseException:
            if self._waiting.pop(turn, None) is None:
                self._let_in()  # it was this one's turn, and now it is another one's
            raise

    def _let_in(self) -> None:
        """Wake as many as there is room for, or all of them if the fleet takes no more."""
        if self._state in ("Draining", "Stopped", "Failed"):
            while self._waiting:
                self._waiting.popitem(last=False)[0].set()
            return
        room = sum(max(0, self._room(seat.gate, again=False)) for seat in self._seats)
        sure = sum(max(0, self._room(seat.gate, again=True)) for seat in self._seats)
        if room <= 0:
            return
        woken = []
        for turn, again in self._waiting.items():
            if room <= 0:
                break
            if again and sure <= 0:
                continue
            room -= 1
            sure -= again
            woken.append(turn)
        for turn in woken:
            del self._waiting[turn]
            turn.set()


class _Seat:
    """A gate's place in a dispatch."""

    __slots__ = ("gate", "open", "sent", "told")

    def __init__(self, gate: Gate, told: Callable[[bool], None]) -> None:
        self.gate = gate
        self.told = told
        self.open = False
        self.sent = 0
        """Requests that went there, and those that it missed while it was closed."""

    def leave(self) -> Pass:
        self.sent += 1
        return self.gate.leave
