"""Charts as finite models, and paths through them: event sequences that a test can follow. No I/O.

`paths` finds event sequences that take every row of the table, every pair of rows that can follow each other, and
every simple path from the first state to a final one. What it does not find, cannot happen: it has walked the whole
model, and says which rows and pairs those are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Generic, TypeVar

from lifecycle.chart import Chart, Event, Row, Step

F = TypeVar("F")


def _always(state: str, facts: object, event: Event) -> bool:
    return True


@dataclass(frozen=True)
class Model(Generic[F]):
    """A chart and all that can happen to it, made finite.

    `abstract` maps facts to a representative of all facts that behave alike: whatever guards read, and whatever
    `reduce` needs to keep that right, stays; the rest becomes constant. It must commute with `reduce`: abstracting
    before an event and after it gives the same as abstracting after it. Facts must be hashable.
    """

    chart: Chart[F]
    initial: tuple[F, ...]
    """The first facts; several for several kinds of servers."""
    samples: tuple[Event, ...]
    """Concrete events: at least one of each kind, and one for each case that `reduce` or a guard tells apart."""
    abstract: Callable[[F], F]
    times: tuple[float, ...] = (0.0,)
    """Seconds since the event before, each tried with each event. `abstract` moves times in the facts to 0."""
    outside: tuple[type[Event], ...] = ()
    """Kinds of events that come from outside, at any moment."""
    anywhere: tuple[type[Event], ...] = ()
    """Kinds of events that every activity may cause besides its outcomes: a fault."""
    possible: Callable[[str, F, Event], bool] = _always
    """Whether the world can bring this event about in this state. Only `paths` asks."""

    def begin(self) -> tuple[tuple[str, F], ...]:
        """Where a life can start."""
        return tuple((self.chart.initial, self.abstract(facts)) for facts in self.initial)

    def steps(self, state: str, facts: F, samples: Iterable[Event]) -> Iterator[tuple[Event, float, Step[F]]]:
        """Every event of `samples` at every time, and the step that it makes, with abstracted facts."""
        for event in samples:
            for at in self.times:
                step = self.chart.step(state, facts, event, at)
                yield event, at, Step(step.outcome, step.before, step.after, self.abstract(step.facts), step.row)


@dataclass(frozen=True)
class Edge(Generic[F]):
    """One event that was taken, between two nodes of a model."""

    state: str
    facts: F
    event: Event
    after: float
    """Seconds since the event before."""
    row: Row
    then: F
    """The facts afterwards."""

    @property
    def source(self) -> tuple[str, F]:
        return self.state, self.facts

    @property
    def target(self) -> tuple[str, F]:
        return self.row.target, self.then


@dataclass(frozen=True)
class Path(Generic[F]):
    """Events from the first state to a final one."""

    edges: tuple[Edge[F], ...]

    @property
    def facts(self) -> F:
        """The facts at the beginning."""
        return self.edges[0].facts

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(edge.row for edge in self.edges)

    @property
    def pairs(self) -> frozenset[tuple[Row, Row]]:
        rows = self.rows
        return frozenset(pairwise(rows))

    def __str__(self) -> str:
        return " ".join([self.edges[0].state, *(f"–{e.row.event.__name__}→ {e.row.target}" for e in self.edges)])


@dataclass(frozen=True)
class Paths(Generic[F]):
    """What `paths` found. Each path ends in a final state if one can be reached."""

    rows: Mapping[Row, Path[F]]
    """A shortest path over each row."""
    pairs: Mapping[tuple[Row, Row], Path[F]]
    """A shortest path over each pair of rows that can follow each other."""
    simple: tuple[Path[F], ...]
    """Every sequence of rows from the first state to a final one that enters no state twice."""
    never: tuple[Row, ...]
    """Rows that no path takes: in the whole model there is no way to them."""
    infeasible: tuple[tuple[Row, Row], ...]
    """Pairs of rows of which the second starts where the first ends, and yet cannot follow: guards see to that."""
    nodes: int
    """(state, facts) pairs in the whole model; all were visited."""

    @cached_property
    def all(self) -> tuple[Path[F], ...]:
        """A set of paths that covers all the rows, pairs and simple paths, without those that add nothing."""
        chosen = list(self.simple)
        rows = {row for path in chosen for row in path.rows}
        pairs = {pair for path in chosen for pair in path.pairs}
        found = dict.fromkeys((*self.pairs.values(), *self.rows.values()))  # in order, unlike a set
        for path in sorted(found, key=lambda path: -len(path.edges)):
            if not (path.pairs <= pairs and rows.issuperset(path.rows)):
                chosen.append(path)
                rows.update(path.rows)
                pairs |= path.pairs
        return tuple(chosen)


def paths(model: Model[F]) -> Paths[F]:
    """Walk the whole model and find paths over every row, every pair and every simple path.

    Raises `ValueError` if the model has more than a million nodes: then `abstract` does not make it finite.
    """
    graph = _Graph(model)
    rows: dict[Row, Path[F]] = {}
    pairs: dict[tuple[Row, Row], Path[F]] = {}
    for node in graph.edges:  # in the order of their distance, so that the first path found is a shortest one
        for edge in graph.edges[node]:
            if edge.row not in rows:
                rows[edge.row] = graph.path((edge,))
            for more in graph.edges[edge.target]:
                if (edge.row, more.row) not in pairs:
                    pairs[edge.row, more.row] = graph.path((edge, more))
    table = model.chart.rows
    adjacent = [(first, second) for first in table for second in table if first.target == second.source]
    return Paths(
        rows,
        pairs,
        tuple(graph.simple()),
        tuple(row for row in table if row not in rows),
        tuple(pair for pair in adjacent if pair not in pairs),
        len(graph.edges),
    )


MOST_NODES = 1_000_000


class _Graph(Generic[F]):
    """Every node of a model, breadth first, and the edges that leave it: one for each row and node behind it."""

    def __init__(self, model: Model[F]) -> None:
        self._model = model
        self._came: dict[tuple[str, F], Edge[F]] = {}
        self._begin = model.begin()
        self.edges: dict[tuple[str, F], tuple[Edge[F], ...]] = {}
        waiting = deque(dict.fromkeys(self._begin))
        known = set(waiting)
        while waiting:
            node = waiting.popleft()
            self.edges[node] = tuple(self._leaving(*node))
            for edge in self.edges[node]:
                if edge.target not in known:
                    known.add(edge.target)
                    self._came[edge.target] = edge
                    waiting.append(edge.target)
            if len(known) > MOST_NODES:
                raise ValueError(f"more than {MOST_NODES} (state, facts) pairs: `abstract` must make the facts finite")
        self._onward = self._ways_to_the_end()

    def _leaving(self, state: str, facts: F) -> Iterator[Edge[F]]:
        model, seen = self._model, set()
        samples = [event for event in model.samples if model.possible(state, facts, event)]
        for event, at, step in model.steps(state, facts, samples):
            if step.row is not None and (step.row, step.facts) not in seen:
                seen.add((step.row, step.facts))
                yield Edge(state, facts, event, at, step.row, step.facts)

    def _ways_to_the_end(self) -> dict[tuple[str, F], Edge[F]]:
        """The first edge of a shortest way to a final state, for each node that has one."""
        coming: dict[tuple[str, F], list[Edge[F]]] = {}
        for edges in self.edges.values():
            for edge in edges:
                coming.setdefault(edge.target, []).append(edge)
        found: dict[tuple[str, F], Edge[F]] = {}
        waiting = deque(node for node in self.edges if node[0] in self._model.chart.final)
        done = set(waiting)
        while waiting:
            for edge in coming.get(waiting.popleft(), ()):
                if edge.source not in done:
                    done.add(edge.source)
                    found[edge.source] = edge
                    waiting.append(edge.source)
        return found

    def path(self, middle: tuple[Edge[F], ...]) -> Path[F]:
        """The shortest way to `middle`, and from there to a final state."""
        before: list[Edge[F]] = []
        node = middle[0].source
        while node in self._came:
            before.append(self._came[node])
            node = before[-1].source
        after: list[Edge[F]] = []
        node = middle[-1].target
        while node in self._onward:
            after.append(self._onward[node])
            node = after[-1].target
        return Path((*reversed(before), *middle, *after))

    def simple(self) -> Iterator[Path[F]]:
        seen: set[tuple[Row, ...]] = set()
        for begin in self._begin:
            trails: list[tuple[tuple[str, F], tuple[Edge[F], ...]]] = [(begin, ())]
            while trails:
                node, trail = trails.pop()
                if node[0] in self._model.chart.final:
                    path = Path(trail)
                    if path.rows not in seen:
                        seen.add(path.rows)
                        yield path
                    continue
                been = {begin[0], *(edge.row.target for edge in trail)}
                trails += [(edge.target, (*trail, edge)) for edge in self.edges[node] if edge.row.target not in been]
