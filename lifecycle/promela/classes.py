"""What guards can tell apart, as few numbers: facts that answer all guards alike, now and after any events."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lifecycle.chart import Event
from lifecycle.paths import Model

F = TypeVar("F")
Edges = dict[tuple[F, type[Event]], set[F]]


@dataclass(frozen=True)
class Classes:
    """The facts of a model in classes: the coarsest that guards, asked after any events, cannot see through (the
    quotient by bisimulation). Numbers go from 0, in the order of what the guards answer."""

    first: tuple[int, ...]
    """Where a life can begin."""
    answers: tuple[tuple[bool, ...], ...]
    """Of each class: what each guard answers, in the chart's order."""
    after: Mapping[tuple[int, type[Event]], frozenset[int]]
    """Where an event can lead. Pairs that no life in the model comes across are missing."""


def classes(model: Model[F]) -> Classes:
    """Walk the whole model, and put together what behaves alike."""
    facts, edges = _walk(model)
    answers = {each: tuple(bool(guard(each)) for guard in model.chart.guards.values()) for each in facts}
    number = _numbered(answers)
    events = model.chart.events
    while True:
        leads = {key: frozenset(map(number.__getitem__, then)) for key, then in edges.items()}
        finer = _numbered({each: (number[each], *(leads.get((each, event)) for event in events)) for each in facts})
        if len(set(finer.values())) == len(set(number.values())):
            break
        number = finer
    order = {old: new for new, (_, old) in enumerate(sorted({(answers[each], number[each]) for each in facts}))}
    number = {each: order[old] for each, old in number.items()}
    return Classes(
        tuple(sorted({number[each] for _, each in model.begin()})),
        tuple(answers for _, answers in sorted({number[each]: answers[each] for each in facts}.items())),
        {(number[each], event): frozenset(map(number.__getitem__, then)) for (each, event), then in edges.items()},
    )


def _walk(model: Model[F]) -> tuple[list[F], Edges[F]]:
    """All facts in the order in which they are found, and where each event leads that a state takes with them."""
    chart = model.chart
    handled = {(row.source, row.event) for row in chart.rows}
    nodes = list(dict.fromkeys(model.begin()))
    known, edges = set(nodes), Edges[F]()
    for state, facts in nodes:  # grows meanwhile
        samples = [event for event in model.samples if (state, type(event)) in handled]
        for event, at, step in model.steps(state, facts, samples):
            edges.setdefault((facts, type(event)), set()).add(model.abstract(chart.reduce(facts, event, at)))
            if (step.after, step.facts) not in known:
                known.add((step.after, step.facts))
                nodes.append((step.after, step.facts))
    found = dict.fromkeys(facts for _, facts in nodes)
    found.update(dict.fromkeys(then for all_then in edges.values() for then in all_then))
    return list(found), edges


def _numbered(kinds: Mapping[F, Hashable]) -> dict[F, int]:
    numbers: dict[Hashable, int] = {}
    return {each: numbers.setdefault(kind, len(numbers)) for each, kind in kinds.items()}
