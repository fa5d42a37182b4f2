"""Everything that can happen to a chart, its activities and its mailbox, exhaustively. No I/O.

A `Model` (from `lifecycle.paths`) is a chart, sample events, and an abstraction that makes the facts finite. `paths`
finds event sequences for tests to follow; `explore` goes through all interleavings and checks invariants everywhere.

    model = Model(chart, (Facts(),), samples=(Start(), Stop(), Done(), Broke("no"), Broke("never")), abstract=forget,
                  outside=(Start, Stop))
    for path in paths(model).all: ...                       # run each through the real thing
    assert explore(model, invariants=(nothing_held_at_the_end,)).counterexample is None
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from lifecycle.chart import Event, Outcome, Span
from lifecycle.paths import Edge, Model, Path, Paths, paths

F = TypeVar("F")


@dataclass(frozen=True)
class Configuration(Generic[F]):
    """What a driver holds between two events."""

    state: str
    facts: F
    open: tuple[Span, ...]
    """The activities that are running, the outermost first."""

    @cached_property
    def activities(self) -> frozenset[str]:
        return frozenset(span.activity for span in self.open)


@dataclass(frozen=True)
class Move(Generic[F]):
    """One letter that was taken from the mailbox."""

    before: Configuration[F]
    event: Event | None
    """None: the outcome of an activity that had been left."""
    sender: str
    """An activity; "" for outside."""
    outcome: Outcome | None
    """None if it was stale."""
    ended: tuple[str, ...]
    """Activities that it ended, in this order."""
    began: tuple[str, ...]
    after: Configuration[F]

    def __str__(self) -> str:
        what = "a stale outcome" if self.event is None else type(self.event).__name__
        made = self.outcome or "stale"
        return f"{self.before.state} – {what} from {self.sender or 'outside'} ({made}) → {self.after.state}"


Invariant = Callable[[Configuration[F]], str | None]
"""None if all is well, or what is wrong."""
MoveInvariant = Callable[[Move[F]], str | None]


@dataclass(frozen=True)
class Counterexample(Generic[F]):
    """A broken invariant and a shortest way to it."""

    broken: str
    path: tuple[Move[F], ...]

    def __str__(self) -> str:
        return "\n  ".join([self.broken, *map(str, self.path)])


@dataclass(frozen=True)
class Exploration(Generic[F]):
    """What `explore` found."""

    configurations: int
    """Different configurations, each with its mailbox."""
    without_mailbox: int
    """Different configurations, whatever was in the mailbox."""
    moves: int
    """Posts and takes between configurations."""
    counterexample: Counterexample[F] | None
    """The first broken invariant, or a configuration from which no final state can be reached; None: all is well."""


def explore(
    model: Model[F],
    *,
    depth: int = 3,
    invariants: Iterable[Invariant[F]] = (),
    moves: Iterable[MoveInvariant[F]] = (),
) -> Exploration[F]:
    """Everything that can happen to a driver of `model.chart` with up to `depth` letters in its mailbox.

    At any moment somebody outside or any running activity may post; letters are taken in order; an outcome is stale if
    its activity has been left since. Each activity may post any number of its outcomes, which is more than a real one
    does. A letter that waits is known by its sender; what is in it is chosen when it is taken, among all that the
    sender can send. As nothing looks into a letter before, this covers every content.

    Args:
        invariants: asked about every configuration.
        moves: asked about every letter taken.

    Raises `ValueError` if `depth` is less than 1.
    """
    if depth < 1:
        raise ValueError(f"depth = {depth}: a mailbox that holds no letter lets nothing happen")
    return _Explorer(model, depth, tuple(invariants), tuple(moves)).run()


_OUTSIDE, _STALE = -1, -2
_Key = tuple[int, tuple[int, ...]]  # a core, and the senders of the letters in the mailbox


@dataclass(frozen=True, slots=True)
class _Taken(Generic[F]):
    core: int
    ended: frozenset[int]
    move: Move[F]


@dataclass
class _Explorer(Generic[F]):
    """Configurations without their mailbox are "cores", known by a number; what taking a letter does to a core is
    found once."""

    model: Model[F]
    depth: int
    invariants: tuple[Invariant[F], ...]
    move_invariants: tuple[MoveInvariant[F], ...]
    cores: list[Configuration[F]] = field(default_factory=list)
    numbers: dict[tuple[str, F, tuple[Span, ...]], int] = field(default_factory=dict)
    senders: list[tuple[int, ...]] = field(default_factory=list)
    taken: dict[tuple[int, int], tuple[_Taken[F], ...]] = field(default_factory=dict)
    came: dict[_Key, tuple[_Key, Move[F] | None] | None] = field(default_factory=dict)

    def run(self) -> Exploration[F]:
        came, waiting, moves = self.came, deque[_Key](), 0
        for state, facts in self.model.begin():
            waiting.append((self._number(Configuration(state, facts, ())), ()))
            came[waiting[-1]] = None
        checked, found = set[int](), None
        while waiting:
            key = core, mailbox = waiting.popleft()
            if core not in checked:
                checked.add(core)
                found = self._broken(key)
                if found is not None:
                    break
            following: list[tuple[_Key, Move[F] | None]] = []
            if len(mailbox) < self.depth:
                following += [((core, (*mailbox, sender)), None) for sender in self.senders[core]]
            if mailbox and self.senders[core]:
                for taken in self.taken[core, mailbox[0]]:
                    rest = mailbox[1:]
                    if taken.ended:
                        rest = tuple(_STALE if sender in taken.ended else sender for sender in rest)
                    following.append(((taken.core, rest), taken.move))
            moves += len(following)
            for then, move in following:
                if then not in came:
                    came[then] = (key, move)
                    waiting.append(then)
        return Exploration(len(came), len(self.cores), moves, found or self._stuck())

    def _number(self, core: Configuration[F]) -> int:
        key = (core.state, core.facts, core.open)
        number = self.numbers.setdefault(key, len(self.cores))
        if number == len(self.cores):
            self.cores.append(core)
            spans = self.model.chart.spans
            able = () if core.state in self.model.chart.final else (
                _OUTSIDE,
                *(spans.index(span) for span in core.open if span.outcomes or self.model.anywhere),
            )  # fmt: skip
            self.senders.append(able)
        return number

    def _all_taken(self, core: int, sender: int) -> Iterator[_Taken[F]]:
        before, chart = self.cores[core], self.model.chart
        if sender == _STALE:
            yield _Taken(core, frozenset(), Move(before, None, "an activity that was left", None, (), (), before))
            return
        kinds = self.model.outside if sender == _OUTSIDE else chart.spans[sender].outcomes + self.model.anywhere
        name = "" if sender == _OUTSIDE else chart.spans[sender].activity
        samples = [event for event in self.model.samples if isinstance(event, kinds)]
        for event, _, step in self.model.steps(before.state, before.facts, samples):
            ends, begins = chart.moves(step, before.open)
            running = tuple(s for s in chart.spans if (s in before.open and s not in ends) or s in begins)
            after = Configuration(step.after, step.facts, running)
            ended, began = tuple(s.activity for s in ends), tuple(s.activity for s in begins)
            yield _Taken(
                self._number(after),
                frozenset(map(chart.spans.index, ends)),
                Move(before, event, name, step.outcome, ended, began, after),
            )

    def _broken(self, key: _Key) -> Counterexample[F] | None:
        """Look at a core for the first time: check it and every letter that can be taken there."""
        core = key[0]
        for invariant in self.invariants:
            wrong = invariant(self.cores[core])
            if wrong is not None:
                return Counterexample(wrong, self._path(key))
        for sender in (*self.senders[core], _STALE) if self.senders[core] else ():
            different: dict[tuple[int, frozenset[int]], _Taken[F]] = {}
            for taken in self._all_taken(core, sender):
                for check in self.move_invariants:
                    wrong = check(taken.move)
                    if wrong is not None:
                        return Counterexample(wrong, (*self._path(key), taken.move))
                different.setdefault((taken.core, taken.ended), taken)
            self.taken[core, sender] = tuple(different.values())
        return None

    def _path(self, key: _Key) -> tuple[Move[F], ...]:
        path: list[Move[F]] = []
        step = self.came[key]
        while step is not None:
            key, move = step
            if move is not None:
                path.append(move)
            step = self.came[key]
        return tuple(reversed(path))

    def _stuck(self) -> Counterexample[F] | None:
        """A configuration from which no sequence of events leads to a final state."""
        coming: dict[int, set[int]] = {}
        for (core, _), all_taken in self.taken.items():
            for taken in all_taken:
                coming.setdefault(taken.core, set()).add(core)
        waiting = [n for n, core in enumerate(self.cores) if core.state in self.model.chart.final]
        good = set(waiting)
        while waiting:
            more = coming.get(waiting.pop(), set()) - good
            good |= more
            waiting += more
        for key in self.came:
            if key[0] not in good:
                where = self.cores[key[0]].state
                return Counterexample(f"from {where} no final state can be reached any more", self._path(key))
        return None


__all__ = [
    "Configuration", "Counterexample", "Edge", "Exploration", "Invariant", "Model", "Move", "MoveInvariant", "Path",
    "Paths", "explore", "paths",
]  # fmt: skip
