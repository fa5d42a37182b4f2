"""The charts of lives, as far as they are Stoker's own."""

from __future__ import annotations

from typing import Any

from lifecycle.chart import Chart
from lifecycle.diagram import CHARTS
from lifecycle.diagram.lived import lived
from lifecycle.diagram.svg import marked
from lifecycle.diagram.view import View, view
from lifecycle.errors import JournalError
from lifecycle.journal import replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from lifecycle.trace.lives import Life


def chart_of(life: Life) -> Chart[Any] | None:
    """The chart of a life: what its first record says, or else the first that has all its states. None: another one."""
    if life.chart:
        return CHARTS.get(life.chart)
    seen = {stretch.state for stretch in life.stretches}
    return next((chart for chart in CHARTS.values() if seen <= {state.name for state in chart.states}), None)


def view_of(life: Life) -> View | None:
    """What there is to draw of it: the part of its chart that it can reach, or all if it has been elsewhere, as one of
    another version may have."""
    chart = chart_of(life)
    if chart is None:
        return None
    found = lived(chart, life.facts)
    reached = {state.name for state in found.states}
    return found if {stretch.state for stretch in life.stretches} <= reached else view(chart, found.title)


def given_up(life: Life) -> str:
    """Why there was no further attempt of a server although one might have helped; empty if that is not known. It is
    in no record, but follows from all of them together."""
    if life.chart != SERVER.name or life.state != "Failed":
        return ""
    try:
        stand = replay(life.records, SERVER, EVENTS, Facts)[life.server]
    except JournalError:  # of another version, or not whole
        return ""
    return stand.facts.diagnosis.given_up if stand.facts.diagnosis else ""


def drawn(found: View) -> dict[str, Any]:
    """A view for a page's script: the picture, what each state means, and which edge has which number."""
    return {
        "title": found.title,
        "svg": marked(found),
        "states": {state.name: state.meaning for state in found.states},
        "edges": [
            {"number": edge.number, "before": edge.source, "after": edge.dest, "events": edge.events}
            for edge in found.edges
        ],
    }
