"""The members of a group as the head sees them, wherever they run: its own as they are, the others by what their hosts
tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from lifecycle.diagnosis import Diagnosis
from lifecycle.gate import Gate
from lifecycle.group.meeting import Guest, Meeting
from lifecycle.group.messages import Begin, End, Leave, Message, News
from lifecycle.group.part import BEGUN, GONE, UNBEGUN, LocalPart, Site
from lifecycle.group.plan import Member, Place
from lifecycle.server_facts import Kill, Stop

UNSEEN = "Unseen"
"""The state of a part whose host is not there: it may be running."""


class Part(Protocol):
    """One member."""

    member: Member
    state: str
    """`UNBEGUN`, `BEGUN`, `UNSEEN`, or its server's."""
    diagnosis: Diagnosis | None
    model: str
    phase: str

    def forget(self) -> None:
        """What became of it in an earlier attempt does not matter any more."""
        ...

    def end(self, how: Stop | Kill) -> None:
        """End it: drain first, or kill. Can be called again, with less time."""
        ...

    @property
    def gone(self) -> bool:
        """Nothing of it is left, and that has been seen."""
        ...

    @property
    def lost(self) -> bool:
        """It is not there any more, or is not to be seen, and nobody has asked for that."""
        ...


class RemotePart:
    """A member on another host."""

    def __init__(self, member: Member, meeting: Meeting) -> None:
        self.member = member
        self.state = UNBEGUN
        self.diagnosis: Diagnosis | None = None
        self.model = ""
        self.phase = ""
        self._meeting = meeting
        self._attempt = 0
        self._asked = False

    def forget(self) -> None:
        """See `Part`."""
        self.state, self.diagnosis, self.model, self.phase, self._asked = UNBEGUN, None, "", "", False

    def begin(self, place: Place, attempt: int) -> None:
        """Have it started."""
        self.forget()
        self.state = BEGUN
        self._attempt = attempt
        if self.member.rank not in self._meeting.present:
            self.state = UNSEEN
            self.diagnosis = Diagnosis("host-lost", f"the host of rank {self.member.rank} has gone")
        self._meeting.send(self.member.rank, Begin(self.member.name, attempt, place.head_address, place.head_port))

    def end(self, how: Stop | Kill) -> None:
        """See `Part`."""
        self._asked = True
        words = End(self.member.name, now=True) if isinstance(how, Kill) else End(
            self.member.name, how.drain, how.kill)  # fmt: skip
        self._meeting.send(self.member.rank, words)

    @property
    def gone(self) -> bool:
        """See `Part`."""
        return self.state in (UNBEGUN, *GONE)

    @property
    def lost(self) -> bool:
        """See `Part`."""
        return self.state in (UNSEEN, "Draining", "Backoff", *GONE) and not self._asked

    def heard(self, news: News) -> None:
        """Its host tells of it."""
        if news.attempt == self._attempt and not self.gone:
            self.state, self.model, self.phase = news.state, news.model, news.phase
            self.diagnosis = news.diagnosis or self.diagnosis

    def host_left(self, found: Diagnosis) -> None:
        """Nobody can see it any more."""
        if not self.gone:
            self.state, self.diagnosis = UNSEEN, self.diagnosis or found

    def host_came(self) -> None:
        """A host joins when nothing of what it ran before is left on it."""
        if self.state == UNSEEN:
            self.state = "Failed"


class Crew:
    """All members.

    Args:
        gate: through which requests reach the member that serves.
        leaves: called with the rank of a host that was told to end, and the seconds that it has if that is known.
    """

    def __init__(
        self,
        plan: Sequence[Member],
        site: Site,
        gate: Gate,
        meeting: Meeting,
        leaves: Callable[[int, float | None], None],
    ) -> None:
        self.local: dict[str, LocalPart] = {}
        self.remote: dict[str, RemotePart] = {}
        for member in plan:
            if member.rank == 0:
                self.local[member.name] = LocalPart(member, site, self.ring, gate if member.serves else None)
            else:
                self.remote[member.name] = RemotePart(member, meeting)
        self.parts: tuple[Part, ...] = tuple(self.local.get(m.name) or self.remote[m.name] for m in plan)
        """In the order of their start."""
        self.changed: Callable[[], None] = lambda: None
        """Called at each change of what is to be seen here."""
        self._leaves = leaves
        self._turn = anyio.Event()
        meeting.heard = self._heard
        meeting.left = self._left
        meeting.joined = self._joined

    @property
    def serving(self) -> LocalPart:
        """The member that takes requests."""
        return next(part for part in self.local.values() if part.member.serves)

    def begin(self, part: Part, tasks: TaskGroup, place: Place, attempt: int) -> None:
        """Start a member; those of this host in `tasks`."""
        if isinstance(part, LocalPart):
            part.begin(tasks, place)
        elif isinstance(part, RemotePart):
            part.begin(place, attempt)
        self.ring()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when something is so of the members."""
        while not holds():
            await self._turn.wait()

    def ring(self) -> None:
        """Something has changed."""
        self._turn.set()
        self._turn = anyio.Event()
        self.changed()

    def first_lost(self) -> Part | None:
        """The member that was lost, if one was: one with a diagnosis rather than one that has merely ended, too."""
        lost = [part for part in self.parts if part.lost]
        return next((part for part in lost if part.diagnosis is not None), lost[0] if lost else None)

    def _heard(self, rank: int, message: Message) -> None:
        if isinstance(message, News):
            part = self.remote.get(message.member)
            if part is not None and part.member.rank == rank:
                part.heard(message)
                self.ring()
        elif isinstance(message, Leave):
            self._leaves(rank, message.within)

    def _left(self, rank: int, guest: Guest, why: str) -> None:
        found = Diagnosis(
            "host-lost", f"{guest.name} has gone: {why}",
            advice=f"look at the command on {guest.hello.host}: it was killed, the host has gone, or the network has",
        )  # fmt: skip
        for part in self.remote.values():
            if part.member.rank == rank:
                part.host_left(found)
        self.ring()

    def _joined(self, rank: int, guest: Guest) -> None:
        for part in self.remote.values():
            if part.member.rank == rank:
                part.host_came()
        self.ring()


def of_member(part: Part) -> Diagnosis:
    """Why the group's attempt failed: its member's own diagnosis, with the member's name."""
    found = part.diagnosis or Diagnosis("ended", "it ended, and nobody had asked it to")
    where = "on the head" if part.member.rank == 0 else f"on the host of rank {part.member.rank}"
    return replace(found, summary=f"member {part.member.name!r} {where}: {found.summary}")
