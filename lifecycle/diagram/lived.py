"""The part of a chart that one life can reach, by the first facts of its journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lifecycle.chart import Chart
from lifecycle.diagram.view import View, view

CONSTANT = ("local", "can_sleep", "probed", "keeps", "idles", "sleeps_when_idle")
"""Facts of a server that no event changes, by the names of their guards."""
FALSE_FOR_GOOD = ("attaches", "keeps", "idles", "sleeps_when_idle")
"""Those that no event makes true. Journals of earlier versions do not have them."""


def lived(chart: Chart[Any], facts: Mapping[str, Any], title: str = "") -> View:
    """What can happen in a life that begins with these facts: guards on facts that never change are decided."""
    known = {name: facts[name] for name in CONSTANT if isinstance(facts.get(name), bool)}
    known.update({name: False for name in FALSE_FOR_GOOD if facts and not facts.get(name)})
    if known.get("idles") is False:
        known["idle"] = False
    return view(chart, title or f"The life of a {chart.name}", known)
