"""How much of a chart runs have taken, from their journals: transitions, pairs, what activities reported. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lifecycle.chart import NOT, Chart, Event, Row
from lifecycle.journal import Kind, Record, of_chart

F = TypeVar("F")
Move = tuple[str, str, str]
"""State before, event, state after: as much of a transition as a journal tells."""
Pair = tuple[Move, Move]
Outcome = tuple[str, str]
"""Activity, event."""


@dataclass(frozen=True)
class Coverage:
    """How often runs did what a chart can do; what never happened has 0."""

    chart: str
    moves: Mapping[Move, int]
    pairs: Mapping[Pair, int]
    """Of moves that one server made one after the other."""
    outcomes: Mapping[Outcome, int]
    """Events that an activity may report, and that came while it ran."""
    unknown: tuple[Move, ...] = ()
    """Moves in the journals that the chart does not have: another version wrote them."""

    def text(self) -> str:
        """Figures, and all that never happened, in Markdown."""
        told = [
            _part("transitions", self.moves, _move),
            _part("pairs of transitions", self.pairs, lambda pair: f"{_move(pair[0])}, then {pair[1][1]}"),
            _part("reports of activities", self.outcomes, lambda outcome: f"{outcome[0]}: {outcome[1]}"),
        ]
        if self.unknown:
            told.append(f"{len(self.unknown)} moves of another version of this chart are not counted.\n")
        return f"# What runs did of the chart {self.chart!r}\n\n" + "\n".join(told)


def coverage(chart: Chart[Any], records: Iterable[Record], infeasible: Collection[tuple[Row, Row]] = ()) -> Coverage:
    """Count what the lives in `records` did.

    Args:
        records: of one or several journals, one after the other; those of other charts are left out.
        infeasible: pairs of rows that guards keep from following each other (`lifecycle.paths.paths` finds them).
    """
    last: dict[str, Move] = {}
    made: Counter[Move] = Counter()
    followed: Counter[Pair] = Counter()
    for record in of_chart(records, chart.name):
        if record.kind is Kind.BEGIN:
            last.pop(record.server, None)
        if record.kind not in (Kind.TRANSITION, Kind.INTERNAL):
            continue
        move = (record.before or "", record.event or "", record.after or "")
        made[move] += 1
        if record.server in last:
            followed[last[record.server], move] += 1
        last[record.server] = move
    moves = dict.fromkeys(map(_of, chart.rows), 0)
    cannot = set(infeasible)
    pairs = {
        (_of(first), _of(second)): 0
        for first in chart.rows
        for second in chart.rows
        if first.target == second.source and (first, second) not in cannot
    }
    outcomes = {
        (span.activity, event.__name__): sum(
            count for (before, name, _), count in made.items() if name == event.__name__ and before in span.states
        )
        for span in chart.spans
        for event in span.outcomes
    }
    return Coverage(
        chart.name,
        {move: made[move] for move in moves},
        {pair: followed[pair] for pair in pairs},
        outcomes,
        tuple(sorted(move for move in made if move not in moves)),
    )


def somebody_reports(chart: Chart[F]) -> Callable[[str, F, Event], bool]:
    """For `Model.possible`: what activities report comes only where one that reports it runs, by the chart's spans.

    It looks at the facts as they are, so guards of spans must not change during a life; those of a server do not.
    """
    outcomes = {event for span in chart.spans for event in span.outcomes}

    def possible(state: str, facts: F, event: Event) -> bool:
        return type(event) not in outcomes or any(
            state in span.states
            and type(event) in span.outcomes
            and all(chart.guards[name.removeprefix(NOT)](facts) is not name.startswith(NOT) for name in span.when)
            for span in chart.spans
        )

    return possible


def _of(row: Row) -> Move:
    return row.source, row.event.__name__, row.target


def _move(move: Move) -> str:
    before, event, after = move
    return f"{before} – {event} → {after}"


def _part(name: str, counts: Mapping[Any, int], words: Any) -> str:
    taken = sum(count > 0 for count in counts.values())
    lines = [f"{taken} of {len(counts)} {name}, {sum(counts.values())} times.", ""]
    never = [words(each) for each, count in counts.items() if not count]
    if never:
        lines += ["Never:", "", *(f"- {each}" for each in never), ""]
    return "\n".join(lines)
