"""The part of a chart that one life can reach, by the first facts of its journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lifecycle.chart import NOT, Chart
from lifecycle.diagram.view import View, view

CONSTANT = ("local", "can_sleep", "probed", "keeps", "idles", "sleeps_when_idle")
"""Facts of a server that no event changes, by the names of their guards."""
FALSE_FOR_GOOD = ("attaches", "keeps", "idles", "sleeps_when_idle")
"""Those that no event makes true. Journals of earlier versions do not have them."""


def lived(chart: Chart[Any], facts: Mapping[str, Any], title: str = "") -> View:
    """What can happen in a life that begins with these facts: guards on facts that never change are decided, and what
    is only reported by activities that never begin does not come."""
    known = {name: facts[name] for name in CONSTANT if isinstance(facts.get(name), bool)}
    known.update({name: False for name in FALSE_FOR_GOOD if facts and not facts.get(name)})
    if known.get("idles") is False:
        known["idle"] = False
    possible = [
        span for span in chart.spans
        if all(known.get(name.removeprefix(NOT), not name.startswith(NOT)) is not name.startswith(NOT)
               for name in span.when)
    ]  # fmt: skip
    silent = {event for span in chart.spans for event in span.outcomes}
    silent -= {event for span in possible for event in span.outcomes}
    rows = [
        replace(row, events=tuple(event for event in row.events if event not in silent)) for row in chart.transitions
    ]
    heard = replace(chart, transitions=tuple(row for row in rows if row.events))
    return view(heard, title or f"The life of a {chart.name}", known)
