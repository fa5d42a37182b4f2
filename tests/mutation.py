"""Breaks the server's table in every place, one at a time, and sees that a check notices.

    python -m tests.mutation [--all]

Each row, guard, ignore, span and outcome is taken out or turned round. The checks are the lint, the explorer with the
invariants of `tests.server_invariants`, and the expectations of `tests.expected_server`. Prints a table; exit status 1
if a mutant survives. With `--all` every check is run on every mutant; otherwise the first that notices ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lifecycle.chart import NOT, Chart, Ignore, Span, Transition
from lifecycle.errors import ChartError
from lifecycle.explore import explore
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Facts
from lifecycle.testing.invariants import INVARIANTS, MOVES
from lifecycle.testing.server_model import server_model
from tests.expected_server import differences


@dataclass(frozen=True)
class Mutant:
    """The table with one thing wrong."""

    what: str
    make: Callable[[], Chart[Facts]]


def rows(chart: Chart[Facts]) -> tuple[Transition, ...]:
    """The table with one event and one source a row."""
    return tuple(Transition((row.event,), (row.source,), row.dest, row.when) for row in chart.rows)


def ignores(chart: Chart[Facts]) -> tuple[Ignore, ...]:
    return tuple(Ignore((e,), (s,)) for ignore in chart.ignores for e in ignore.events for s in ignore.states)


def mutants(chart: Chart[Facts]) -> Iterator[Mutant]:
    """Every single change."""
    yield from _of_rows(chart)
    yield from _of_guards(chart)
    yield from _of_ignores(chart)
    yield from _of_spans(chart)


def _changed(chart: Chart[Facts], where: str, parts: tuple[Any, ...]) -> Callable[[], Chart[Facts]]:
    changes: dict[str, Any] = {where: parts}
    return lambda: replace(chart, **changes)


def _without(parts: tuple[Any, ...], position: int, *instead: Any) -> tuple[Any, ...]:
    return (*parts[:position], *instead, *parts[position + 1 :])


def _of_rows(chart: Chart[Facts]) -> Iterator[Mutant]:
    table = rows(chart)
    for at, (row, named) in enumerate(zip(table, chart.rows, strict=True)):
        yield Mutant(f"row: {named}: removed", _changed(chart, "transitions", _without(table, at)))
        other = "Draining" if row.dest is None else None
        becomes = "made internal" if other is None else "made to leave"
        changed = _without(table, at, replace(row, dest=other))
        yield Mutant(f"row: {named}: {becomes}", _changed(chart, "transitions", changed))


def _of_guards(chart: Chart[Facts]) -> Iterator[Mutant]:
    table = rows(chart)
    for at, (row, named) in enumerate(zip(table, chart.rows, strict=True)):
        for n, literal in enumerate(row.when):
            turned = literal.removeprefix(NOT) if literal.startswith(NOT) else NOT + literal
            for what, instead in (("dropped", ()), ("negated", (turned,))):
                when = (*row.when[:n], *instead, *row.when[n + 1 :])
                changed = _without(table, at, replace(row, when=when))
                yield Mutant(f"guard: {named}: {literal!r} {what}", _changed(chart, "transitions", changed))
    for name in chart.guards:
        for value in (True, False):
            guards = {**chart.guards, name: _always if value else _never}
            yield Mutant(f"guard: {name} always {value}", lambda guards=guards: replace(chart, guards=guards))  # type: ignore[misc]


def _always(facts: Facts) -> bool:
    return True


def _never(facts: Facts) -> bool:
    return False


def _of_ignores(chart: Chart[Facts]) -> Iterator[Mutant]:
    for at, ignore in enumerate(ignores(chart)):
        what = f"ignore: {ignore.events[0].__name__} in {ignore.states[0]}: removed"
        yield Mutant(what, _changed(chart, "ignores", _without(ignores(chart), at)))
    for event in chart.never_ignored:
        rest = tuple(kind for kind in chart.never_ignored if kind is not event)
        yield Mutant(f"never ignored: {event.__name__}: removed", _changed(chart, "never_ignored", rest))


def _of_spans(chart: Chart[Facts]) -> Iterator[Mutant]:
    spans = chart.spans
    for at, span in enumerate(spans):
        name = f"span: {span.activity}"
        yield Mutant(f"{name}: removed", _changed(chart, "spans", _without(spans, at)))
        for what, instead in _bounds(chart, span):
            yield Mutant(f"{name}: {what}", _changed(chart, "spans", _without(spans, at, instead)))
        for event in span.outcomes:
            rest = tuple(kind for kind in span.outcomes if kind is not event)
            changed = _without(spans, at, replace(span, outcomes=rest))
            yield Mutant(f"{name}: may not report {event.__name__}", _changed(chart, "spans", changed))
        if span.when:
            yield Mutant(f"{name}: always", _changed(chart, "spans", _without(spans, at, replace(span, when=()))))
        if at:
            swapped = (*spans[: at - 1], span, spans[at - 1], *spans[at + 1 :])
            yield Mutant(f"{name}: outside {spans[at - 1].activity}", _changed(chart, "spans", swapped))


def _bounds(chart: Chart[Facts], span: Span) -> Iterator[tuple[str, Span]]:
    for state in span.opens:
        opens = tuple(name for name in span.opens if name != state)
        yield f"not begun in {state}", replace(span, opens=opens, lasts=(*span.lasts, state))
    for state in span.lasts:
        lasts = tuple(name for name in span.lasts if name != state)
        yield f"ended before {state}", replace(span, lasts=lasts)
        if any(row.target == state and row.source not in span.states for row in chart.rows):
            # Where every way in comes from within the span, it has begun already: no difference could be seen.
            yield f"begun in {state}", replace(span, opens=(*span.opens, state), lasts=lasts)


def by_lint(chart: Chart[Facts]) -> str | None:
    return next(iter(chart.lint()), None)


def by_exploring(chart: Chart[Facts]) -> str | None:
    found = explore(server_model(chart), depth=1, invariants=INVARIANTS, moves=MOVES).counterexample
    return found.broken if found else None


def by_expectation(chart: Chart[Facts]) -> str | None:
    return next(differences(chart), None)


CHECKS = {"lint": by_lint, "expectation": by_expectation, "explorer": by_exploring}  # the slowest last


def noticed(mutant: Mutant, *, every: bool = False) -> dict[str, str]:
    """The checks that notice a mutant, and what they say."""
    try:
        chart = mutant.make()
    except ChartError as error:
        return {"made": str(error)}
    found: dict[str, str] = {}
    for name, check in CHECKS.items():
        if found and not every:
            break
        said = check(chart)
        if said is not None:
            found[name] = said
    return found


def main(arguments: list[str]) -> int:
    survivors, total = 0, 0
    counts = dict.fromkeys(CHECKS, 0)
    for mutant in mutants(SERVER):
        found = noticed(mutant, every="--all" in arguments)
        total += 1
        survivors += not found
        for name in found:
            counts[name] = counts.get(name, 0) + 1
        by = "; ".join(f"{name}: {said}" for name, said in found.items()) or "SURVIVES"
        print(f"{mutant.what:<90} {by}")
    print(f"\n{total} mutants, {survivors} survive; noticed by " + ", ".join(f"{n} {c}" for n, c in counts.items()))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
