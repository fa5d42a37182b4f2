"""State diagrams, generated from the chart: Mermaid, dot, SVG and Markdown tables; of the whole machine, of what one
backend can do, or of what a run did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from lifecycle.adapter import backends, load_adapter
from lifecycle.chart import Row
from lifecycle.coverage import coverage, somebody_reports
from lifecycle.diagram.svg import overview, svg
from lifecycle.diagram.text import dot, mermaid, table
from lifecycle.diagram.view import Counts, View, view
from lifecycle.fleet.chart import FLEET
from lifecycle.group.chart import GROUP
from lifecycle.group.worker_chart import WORKER
from lifecycle.journal import Kind, Record, of_chart, read_journal
from lifecycle.ray.chart import PLACEMENT
from lifecycle.server_chart import SERVER

FORMATS = {"mermaid": (mermaid, "mmd"), "dot": (dot, "dot"), "svg": (svg, "svg"), "table": (table, "md")}
OURS = ("custom", "echo", "endpoint", "llamacpp", "ray", "sglang", "vllm")
"""Backends whose diagrams are committed."""
OTHERS = {
    "fleet": view(FLEET, "The life of a fleet"),
    "group": view(GROUP, "The life of a group of servers"),
    "worker": view(WORKER, "The life of a group's host that is not its head"),
    "placement": view(PLACEMENT, "The life of a replica's place on a cluster"),
}
"""Charts beside that of a server, by the name of their diagrams."""
CHARTS = {chart.name: chart for chart in (SERVER, FLEET, GROUP, WORKER, PLACEMENT)}


def server_view(backend: str | None = None, title: str = "The life of a server") -> View:
    """The server's chart, or the part of it that a backend can reach."""
    if backend is None:
        return view(SERVER, title)
    can = load_adapter(backend).capabilities
    known = {"local": can.local, "can_sleep": can.sleep is not None, "probed": can.probed}
    if can.sleep is None:
        known["sleeps_when_idle"] = False
    if not can.local:
        known |= dict.fromkeys(("attaches", "keeps", "idles", "idle"), False)
    return view(SERVER, f"{title}: {backend}", known)


def render(format: str, backend: str | None = None, taken: Counts | None = None) -> str:
    """A diagram as text. `format` is mermaid, dot, svg or table."""
    function, _ = FORMATS[format]
    return function(server_view(backend), taken)


def coverage_of(journals: Iterable[Path], format: str, chart: str = SERVER.name) -> str:
    """How much of a chart the runs in these journals did: a diagram with how often each transition was taken, or for
    `table` the figures, with all transitions, pairs and reports of activities that never came."""
    found = coverage(CHARTS[chart], (r for path in journals for r in read_journal(path)), infeasible(chart))
    if format == "table":
        return found.text()
    function, _ = FORMATS[format]
    return function(OTHERS[chart] if chart in OTHERS else server_view(), found.moves)


def infeasible(chart: str) -> Collection[tuple[Row, Row]]:
    """Pairs of rows that cannot follow each other, where there is a model that shows it."""
    if chart != SERVER.name:
        return ()
    from lifecycle.paths import paths
    from lifecycle.testing import server_model

    return paths(replace(server_model(), possible=somebody_reports(SERVER))).infeasible


def counts(records: Iterable[Record]) -> Counts:
    """How often each transition of the server's chart was taken."""
    return Counter(
        (record.before or "", record.event or "", record.after or "")
        for record in of_chart(records, SERVER.name)
        if record.kind in (Kind.TRANSITION, Kind.INTERNAL)
    )


def counts_of(journals: Iterable[Path]) -> Counts:
    """How often each transition was taken, in all of these journals."""
    return counts(record for path in journals for record in read_journal(path))


def run_diagram(journal: Path, picture: Path, backend: str, skip: int = 0) -> None:
    """Draw what a run of a backend did, from its journal; `skip` bytes of earlier runs are left out."""
    picture.write_text(svg(server_view(backend, "This run"), counts(read_journal(journal, skip))), encoding="utf-8")


def committed() -> Iterator[tuple[str, str]]:
    """(file name, content) of every diagram that is kept beside the code."""
    for backend in (None, *(name for name in OURS if name in backends())):
        for format, (_, ending) in FORMATS.items():
            yield f"{backend or 'server'}.{ending}", render(format, backend)
    for name, drawn in OTHERS.items():
        for function, ending in FORMATS.values():
            yield f"{name}.{ending}", function(drawn, None)
    yield "overview.svg", overview(server_view())


__all__ = [
    "CHARTS",
    "FORMATS",
    "committed",
    "counts",
    "counts_of",
    "coverage_of",
    "dot",
    "infeasible",
    "mermaid",
    "overview",
    "render",
    "run_diagram",
    "server_view",
    "svg",
    "table",
    "view",
]
