"""Keeps a router's list of servers equal to the replicas that are Healthy: reads the list, tells the difference, and
reads it again, until they are equal and whenever a replica or the router comes or goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import count

import anyio

from lifecycle.errors import StokerError
from lifecycle.fleet.registry import (
    Add,
    Call,
    Listed,
    Place,
    Registry,
    Remove,
    Routing,
    observe,
    plan,
    router_gone,
    tell,
    want,
)
from lifecycle.gate import Gate
from lifecycle.host import Answer, NoAnswer
from lifecycle.probing import is_good

Ask = Callable[[Call], Awaitable[Answer]]
"""Sends a call to the router that lives now. Raises `NoAnswer`."""

FIRST_LOOK, LAST_LOOK = 0.01, 0.5
"""Seconds until the list is read again while it differs; doubled each time. A router adds a server within some 10 ms.
"""
CHECK = 2.0
"""Seconds between two looks at a list that is as it should be: a router may do late what it was told long ago."""


MISSING, CONFLICT = 404, 409
"""What a router says that was told already: what matters is its list."""


class RouterRefused(StokerError):
    """A router did not do what it was told."""


class Registrar:
    """One for each router.

    Args:
        router: the gate of the router itself: open while it lives.
        replicas: the gates of the replicas that are Healthy now.
        routing: the router's words.
        ask: sends them.
        key: what the replicas want of those who send them requests.
        note: told, for people, what has become of the list.
    """

    def __init__(
        self,
        router: Gate,
        replicas: Callable[[], Iterable[Gate]],
        routing: Routing,
        ask: Ask,
        *,
        key: str | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._router = router
        self._replicas = replicas
        self._routing = routing
        self._ask = ask
        self._key = key
        self._note = note
        self.registry = Registry()
        self._places: dict[Gate, tuple[int, Place]] = {}
        self._lives = count(1)
        self._life = 0
        """The router's, as its gate counts."""
        self._held: dict[Place, Gate] = {}
        """The replicas whose drain waits until the router has forgotten them."""
        self._of: dict[Place, Gate] = {}
        self._news = anyio.Event()
        self._turn = anyio.Event()
        self._told = ""

    @property
    def life(self) -> int:
        """Which life of the router `have` is about; 0: it does not live."""
        return self._life if self._router.is_open else 0

    @property
    def have(self) -> int:
        """How many Healthy replicas the router sends requests to."""
        return len(self.registry.have) if self.life else 0

    def look(self) -> None:
        """A state has changed, of a replica or of the router: to be called at each change, before anything else."""
        places = {}
        for gate in self._replicas():
            leave = gate.leave
            known = self._places.get(gate)
            if known is None or known[0] != leave.life:
                known = (leave.life, Place(leave.url, leave.model, next(self._lives)))
            places[gate] = known
        self._places = places
        self._of = {place: gate for gate, (_, place) in places.items()}
        self._become(want(self.registry, self._of))
        if not self._router.is_open or self._router.life != self._life:
            self._life = self._router.life
            self._become(router_gone(self.registry))
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when something is so that depends on what the router has."""
        while not holds():
            await self._turn.wait()

    async def run(self) -> None:
        """Runs until cancelled; then nobody's drain waits for the router any more."""
        try:
            self.look()
            pause = FIRST_LOOK
            while True:
                self._news = anyio.Event()
                equal = not self._router.is_open or await self._reconciled()
                with anyio.move_on_after(CHECK if equal else pause):
                    await self._news.wait()
                pause = FIRST_LOOK if equal or self._news.is_set() else min(LAST_LOOK, 2 * pause)
        finally:
            self._become(Registry(wanted=self.registry.wanted))

    async def _reconciled(self) -> bool:
        """Read the list and tell the difference; whether there was none."""
        life = self._life
        try:
            answer = await self._asked(self._routing.listing())
            listing = self._routing.listed(answer.body)
            if life != self._life:
                return False
            self._become(observe(self.registry, listing))
            actions = plan(self.registry, listing, anyio.current_time())
            for kind in (Remove, Add):
                async with anyio.create_task_group() as group:
                    for action in actions:
                        if isinstance(action, kind):
                            group.start_soon(self._do, action)
        except (NoAnswer, RouterRefused, ValueError) as error:
            self._say(f"the router does not do what it is told: {error}")
            return False
        if self.registry.settled and (self.have or self._told):
            these = "replica" if self.have == 1 else "replicas"
            self._say(f"requests go to {self.have} {these}")
        return self.registry.settled and not actions

    async def _do(self, action: Add | Remove) -> None:
        try:
            if isinstance(action, Remove):
                await self._remove(action.listed)
            elif self.registry.wanted.get(action.place.url) == action.place:  # it may have left meanwhile
                await self._add(action.place)
        except (NoAnswer, RouterRefused) as error:
            self._say(f"the router does not do what it is told: {error}")

    async def _add(self, place: Place) -> None:
        # Told before it is asked: a call that gets no answer may have been heard.
        self._become(tell(self.registry, place, anyio.current_time()))
        answer = await self._ask(self._routing.add(place, self._key))
        if not is_good(answer) and answer.status != CONFLICT:
            raise RouterRefused(f"it answers {answer.status} to the addition of {place.url}: {answer.body}")

    async def _remove(self, listed: Listed) -> None:
        answer = await self._ask(self._routing.remove(listed))
        if not is_good(answer) and answer.status != MISSING:
            raise RouterRefused(f"it answers {answer.status} to the removal of {listed.url}: {answer.body}")

    async def _asked(self, call: Call) -> Answer:
        answer = await self._ask(call)
        if not is_good(answer):
            raise RouterRefused(f"{call.method} {call.path}: {answer.status}: {answer.body}")
        return answer

    def _become(self, registry: Registry) -> None:
        """The registry's one way to change: drains wait for what it holds, and for nothing else."""
        self.registry = registry
        may_be_sent_to = set(registry.told.values())
        for place in may_be_sent_to - self._held.keys():
            if place in self._of:
                self._held[place] = self._of[place]
                self._held[place].hold()
        for place in self._held.keys() - may_be_sent_to:
            self._held.pop(place).let_go()
        self._turn.set()
        self._turn = anyio.Event()

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._note(text)
