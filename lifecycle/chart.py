"""State charts as tables. No I/O, no `await`, no clock: whatever decides lives in a chart, and nothing else does.

A chart is a list of states, a list of guarded transitions, a list of spans (who is at work in which states), and a pure
`reduce(facts, event, at)`. It runs on one plain `transitions.Machine` that all servers share; a server is a
`(state, facts)` pair, and `Chart.step` takes it one event further. The same chart drives production, the simulation,
the path generator, the exhaustive explorer and the diagrams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Any, Generic, TypeVar, cast

from transitions import EventData, Machine

from lifecycle.errors import ChartError

F = TypeVar("F")
Guard = Callable[[F], bool]

NOT = "not "


@dataclass(frozen=True, slots=True)
class Event:
    """The root of all events: frozen, named for what happened."""


class Outcome(StrEnum):
    """What a chart made of an event."""

    TAKEN = "taken"
    REFUSED = "refused"
    """The state has no transition for it."""
    IGNORED = "ignored"
    """The table says that this event means nothing in this state."""


@dataclass(frozen=True)
class State:
    """A state of a chart; `meaning` is one line for tables and diagrams."""

    name: str
    meaning: str
    final: bool = False


@dataclass(frozen=True)
class Transition:
    """One row of the table: any of `events` in any of `sources` goes to `dest` if every guard in `when` holds.

    A guard is the name of a function, or `not ` and its name. `dest` None is internal: the facts change, the state is
    not left. `dest` equal to the source re-enters the state: the activities that belong to it alone start again.
    """

    events: tuple[type[Event], ...]
    sources: tuple[str, ...]
    dest: str | None
    when: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ignore:
    """Events that mean nothing in some states, and are meant to mean nothing."""

    events: tuple[type[Event], ...]
    states: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """An activity and the states that own it: it starts when a state of `opens` is entered from outside the span, and
    ends when the span is left. Spans are listed from the outermost to the innermost."""

    activity: str
    opens: tuple[str, ...]
    lasts: tuple[str, ...] = ()
    outcomes: tuple[type[Event], ...] = ()
    """What the activity may report. Each must be handled in every state of the span."""
    deadlines: tuple[str, ...] = ()
    """Settings that bound it in time, for tables and diagrams."""
    meaning: str = ""
    when: tuple[str, ...] = ()
    """Guards, as in a transition: it begins only if each holds then."""

    @cached_property
    def states(self) -> frozenset[str]:
        return frozenset((*self.opens, *self.lasts))


@dataclass(frozen=True, slots=True)
class Row:
    """One transition of one source: what `Chart.rows` unfolds the table into."""

    index: int
    event: type[Event]
    source: str
    dest: str | None
    when: tuple[str, ...]

    @property
    def target(self) -> str:
        return self.source if self.dest is None else self.dest

    def __str__(self) -> str:
        guards = f" [{', '.join(self.when)}]" if self.when else ""
        arrow = "(internal)" if self.dest is None else f"→ {self.dest}"
        return f"{self.source} – {self.event.__name__}{guards} {arrow}"


@dataclass(frozen=True, slots=True)
class Step(Generic[F]):
    """The result of one event."""

    outcome: Outcome
    before: str
    after: str
    facts: F
    row: Row | None

    @property
    def internal(self) -> bool:
        """Taken, and the state was not left."""
        return self.row is not None and self.row.dest is None


class _Cursor:
    """The model that the shared machine moves: one is made for each step and thrown away."""

    __slots__ = ("facts", "row", "state")

    def __init__(self, state: str, facts: Any) -> None:
        self.state = state
        self.facts = facts
        self.row: Row | None = None


@dataclass(frozen=True)
class Chart(Generic[F]):
    """A state machine as data. Raises `ChartError` when made with a name in it that does not exist."""

    name: str
    states: tuple[State, ...]
    transitions: tuple[Transition, ...]
    reduce: Callable[[F, Event, float], F] = field(repr=False)
    """Pure: the facts after `event` at Unix time `at`. Guards see its result; kept only if the event is taken."""
    guards: Mapping[str, Guard[F]] = field(default_factory=dict, repr=False)
    spans: tuple[Span, ...] = ()
    ignores: tuple[Ignore, ...] = ()
    never_ignored: tuple[type[Event], ...] = ()
    """Events that every state which is not final must take: stop, kill, shutdown, fault."""

    def __post_init__(self) -> None:
        findings = list(self._misnamed())
        if findings:
            raise ChartError(f"chart {self.name!r}: " + "; ".join(findings))

    @property
    def initial(self) -> str:
        return self.states[0].name

    @cached_property
    def final(self) -> frozenset[str]:
        return frozenset(state.name for state in self.states if state.final)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every transition of every single event in every single source, in table order."""
        rows: list[Row] = []
        for transition in self.transitions:
            for event in transition.events:
                for source in transition.sources:
                    rows.append(Row(len(rows), event, source, transition.dest, transition.when))
        return tuple(rows)

    @cached_property
    def events(self) -> tuple[type[Event], ...]:
        """Every event that the table knows, in the order in which they first occur."""
        seen = dict.fromkeys(row.event for row in self.rows)
        seen.update(dict.fromkeys(event for ignore in self.ignores for event in ignore.events))
        return tuple(seen)

    @cached_property
    def _ignored(self) -> frozenset[tuple[str, type[Event]]]:
        return frozenset((s, e) for ignore in self.ignores for s in ignore.states for e in ignore.events)

    @cached_property
    def _handled(self) -> frozenset[tuple[str, type[Event]]]:
        return frozenset((row.source, row.event) for row in self.rows)

    @cached_property
    def machine(self) -> Machine:
        """The one machine. Guards are wrapped in `bool`: the library takes only exactly True for a yes."""
        machine = Machine(
            model=None,
            states=[state.name for state in self.states],
            initial=self.initial,
            auto_transitions=False,
            send_event=True,
            ignore_invalid_triggers=True,
        )
        for row in self.rows:
            machine.add_transition(
                row.event.__name__,
                row.source,
                row.dest,
                conditions=[self._condition(name) for name in row.when if not name.startswith(NOT)],
                unless=[self._condition(name.removeprefix(NOT)) for name in row.when if name.startswith(NOT)],
                before=_remember(row),
            )
        return machine

    def _condition(self, name: str) -> Callable[[EventData], bool]:
        guard = self.guards[name]
        return lambda data: bool(guard(cast("_Cursor", data.model).facts))

    def step(self, state: str, facts: F, event: Event, at: float) -> Step[F]:
        """What `event` at Unix time `at` does to a server in `state` with `facts`. Pure."""
        kind = type(event)
        if (state, kind) not in self._handled:
            outcome = Outcome.IGNORED if (state, kind) in self._ignored or state in self.final else Outcome.REFUSED
            return Step(outcome, state, state, facts, None)
        changed = self.reduce(facts, event, at)
        cursor = _Cursor(state, changed)
        if not self.machine.events[kind.__name__].trigger(cursor):
            return Step(Outcome.REFUSED, state, state, facts, None)
        return Step(Outcome.TAKEN, state, cursor.state, changed, cursor.row)

    def moves(self, step: Step[F], open_spans: tuple[Span, ...]) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """Which of the open spans end with a step (innermost first) and which begin (outermost first)."""
        if step.row is None or step.row.dest is None:
            return (), ()
        again = step.before == step.after
        ends = tuple(
            span
            for span in reversed(open_spans)
            if step.after not in span.states or (again and span.states == {step.after})
        )
        kept = set(open_spans) - set(ends)
        begins = tuple(
            span
            for span in self.spans
            if step.after in span.opens and span not in kept and self._hold(span.when, step.facts)
        )
        return ends, begins

    def _hold(self, when: tuple[str, ...], facts: F) -> bool:
        return all(bool(self.guards[name.removeprefix(NOT)](facts)) is not name.startswith(NOT) for name in when)

    def _misnamed(self) -> Iterator[str]:
        known = {state.name for state in self.states}
        if len(known) != len(self.states):
            yield "a state is listed twice"
        used = [(name, f"a transition on {t.events[0].__name__}") for t in self.transitions for name in t.sources]
        used += [(t.dest, f"a transition on {t.events[0].__name__}") for t in self.transitions if t.dest is not None]
        used += [(name, f"the span {span.activity!r}") for span in self.spans for name in span.states]
        used += [(name, "an ignore") for ignore in self.ignores for name in ignore.states]
        for name, where in used:
            if name not in known:
                yield f"{where} names the state {name!r}, which does not exist"
        literals = [name for transition in self.transitions for name in transition.when]
        literals += [name for span in self.spans for name in span.when]
        for literal in literals:
            guard = self.guards.get(literal.removeprefix(NOT))
            if guard is None:
                yield f"the guard {literal!r} does not exist"
            elif getattr(guard, "__name__", "<lambda>") == "<lambda>":
                yield f"the guard {literal!r} is not a named function"

    def lint(self) -> list[str]:
        """Everything that is wrong with this chart, a sentence each. An empty list is a sound chart."""
        return [
            *self._unreachable(),
            *self._dead_ends(),
            *self._undecided(),
            *self._shadowed(),
            *self._unhandled(),
            *self._never_begun(),
            *self._ignored_and_handled(),
        ]

    def _edges(self) -> Mapping[str, set[str]]:
        edges: dict[str, set[str]] = {state.name: set() for state in self.states}
        for row in self.rows:
            edges[row.source].add(row.target)
        return edges

    def _unreachable(self) -> Iterator[str]:
        edges, seen = self._edges(), {self.initial}
        frontier = [self.initial]
        while frontier:
            for after in edges[frontier.pop()] - seen:
                seen.add(after)
                frontier.append(after)
        for state in self.states:
            if state.name not in seen:
                yield f"{state.name} cannot be reached from {self.initial}"

    def _dead_ends(self) -> Iterator[str]:
        edges = self._edges()
        good = set(self.final)
        while True:
            more = {state for state, after in edges.items() if state not in good and after & good}
            if not more:
                break
            good |= more
        for state in self.states:
            if state.name not in good:
                yield f"{state.name} has no way to a final state"
            if state.final and edges[state.name]:
                yield f"{state.name} is final and has a transition"

    def _undecided(self) -> Iterator[str]:
        """Guards on one (state, event) must split every case: exactly one row for each truth value of each guard."""
        for (source, event), rows in self._by_cell().items():
            names = sorted({literal.removeprefix(NOT) for row in rows for literal in row.when})
            for values in product((True, False), repeat=len(names)):
                truth = dict(zip(names, values, strict=True))
                holding = [row for row in rows if all(_holds(literal, truth) for literal in row.when)]
                case = ", ".join(name if value else NOT + name for name, value in truth.items()) or "no guard"
                if len(holding) > 1:
                    yield f"{source} on {event.__name__}: {len(holding)} rows hold at once ({case})"
                if not holding:
                    yield f"{source} on {event.__name__}: every guard can fail ({case})"

    def _shadowed(self) -> Iterator[str]:
        for rows in self._by_cell().values():
            for position, later in enumerate(rows):
                if any(set(earlier.when) <= set(later.when) for earlier in rows[:position]):
                    yield f"{later} is shadowed by a row above it"

    def _unhandled(self) -> Iterator[str]:
        for span in self.spans:
            for state in sorted(span.states):
                for event in span.outcomes:
                    if (state, event) not in self._handled | self._ignored:
                        yield f"{state} does not handle {event.__name__}, which {span.activity!r} may report there"
        for owner in self.states:
            for event in self.never_ignored:
                if not owner.final and (owner.name, event) not in self._handled:
                    yield f"{owner.name} does not take {event.__name__}, which no state may ignore"

    def _never_begun(self) -> Iterator[str]:
        """A span begins when a state is entered, and the initial state is not."""
        entered = {row.dest for row in self.rows}
        for span in self.spans:
            if not entered & set(span.opens):
                yield f"{span.activity!r} never begins: no transition enters {' or '.join(span.opens)}"

    def _ignored_and_handled(self) -> Iterator[str]:
        for state, event in sorted(self._ignored & self._handled, key=lambda pair: (pair[0], pair[1].__name__)):
            yield f"{state} both ignores and takes {event.__name__}"

    def _by_cell(self) -> Mapping[tuple[str, type[Event]], list[Row]]:
        cells: dict[tuple[str, type[Event]], list[Row]] = {}
        for row in self.rows:
            cells.setdefault((row.source, row.event), []).append(row)
        return cells


def _holds(literal: str, truth: Mapping[str, bool]) -> bool:
    return truth[literal.removeprefix(NOT)] is not literal.startswith(NOT)


def _remember(row: Row) -> Callable[[EventData], None]:
    def before(data: EventData) -> None:
        cast("_Cursor", data.model).row = row

    return before
