"""What there is to draw of a chart: edges by number, spans, and what a run did. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lifecycle.chart import NOT, Chart, Event, Row, Span, State

Counts = Mapping[tuple[str, str, str], int]
"""(state before, event, state after) to how often a run took it."""


@dataclass(frozen=True)
class Edge:
    """All transitions from one state to another under the same guards."""

    number: int
    source: str
    dest: str
    events: tuple[str, ...]
    guards: tuple[str, ...]
    internal: bool

    @property
    def again(self) -> bool:
        """The state is left and entered anew."""
        return self.source == self.dest and not self.internal

    def taken(self, counts: Counts) -> int:
        return sum(counts.get((self.source, event, self.dest), 0) for event in self.events)


@dataclass(frozen=True)
class View:
    """A chart, or the part of one that some backend can reach."""

    title: str
    states: tuple[State, ...]
    edges: tuple[Edge, ...]
    spans: tuple[Span, ...]

    def edges_from(self, state: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == state)

    def spans_of(self, state: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if state in span.states)


def view(chart: Chart[Any], title: str = "", assume: Mapping[str, bool] | None = None) -> View:
    """What can happen in `chart` if the guards in `assume` always have the given values."""
    known = assume or {}
    never = _silent(chart, known)
    rows = [
        row
        for row in chart.rows
        if row.event not in never and not any(_contradicts(literal, known) for literal in row.when)
    ]
    reached = _reached(chart.initial, rows)
    edges = _edges([row for row in rows if row.source in reached], known)
    spans = tuple(
        replace(span, when=_open(span.when, known))
        for span in chart.spans
        if reached & set(span.opens) and not any(_contradicts(literal, known) for literal in span.when)
    )
    return View(title or chart.name, tuple(state for state in chart.states if state.name in reached), edges, spans)


def _silent(chart: Chart[Any], known: Mapping[str, bool]) -> set[type[Event]]:
    """Events that only activities report which never begin."""
    begin = [span for span in chart.spans if not any(_contradicts(literal, known) for literal in span.when)]
    said = {event for span in begin for event in span.outcomes}
    return {event for span in chart.spans for event in span.outcomes} - said


def _contradicts(literal: str, known: Mapping[str, bool]) -> bool:
    name = literal.removeprefix(NOT)
    return name in known and known[name] is literal.startswith(NOT)


def _open(when: tuple[str, ...], known: Mapping[str, bool]) -> tuple[str, ...]:
    """The guards that are not decided yet."""
    return tuple(literal for literal in when if literal.removeprefix(NOT) not in known)


def _reached(initial: str, rows: Iterable[Row]) -> set[str]:
    rows = list(rows)
    reached, more = {initial}, True
    while more:
        found = {row.target for row in rows if row.source in reached} - reached
        reached |= found
        more = bool(found)
    return reached


def _edges(rows: Iterable[Row], known: Mapping[str, bool]) -> tuple[Edge, ...]:
    grouped: dict[tuple[str, str, tuple[str, ...], bool], list[str]] = {}
    for row in rows:
        guards = _open(row.when, known)
        grouped.setdefault((row.source, row.target, guards, row.dest is None), []).append(row.event.__name__)
    return tuple(
        Edge(number, source, dest, tuple(events), guards, internal)
        for number, ((source, dest, guards, internal), events) in enumerate(grouped.items(), 1)
    )
