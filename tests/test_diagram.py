"""Diagrams are made from the chart and from nothing else, and say all of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lifecycle.chart import NOT, Chart, Event, State, Transition
from lifecycle.diagram import FORMATS, committed, counts, overview, render, run_diagram, server_view
from lifecycle.diagram.view import view
from lifecycle.journal import FileSink, Journal, Kind, read_journal
from lifecycle.server_chart import SERVER

DIAGRAMS = Path(__file__).parents[1] / "diagrams"


class Go(Event):
    pass


def test_what_is_committed_is_what_the_code_draws_now() -> None:
    drawn = dict(committed())
    assert {path.name for path in DIAGRAMS.iterdir()} == set(drawn)
    for name, content in drawn.items():
        assert (DIAGRAMS / name).read_text(encoding="utf-8") == content, f"{name}: run `make diagrams`"


@pytest.mark.parametrize("format", FORMATS)
def test_every_event_guard_state_and_activity_is_in_every_format(format: str) -> None:
    text = render(format).replace("</text>", " ")
    for state in SERVER.states:
        assert state.name in text
    for row in SERVER.rows:
        assert row.event.__name__ in text
    for literal in {literal for row in SERVER.rows for literal in row.when}:
        assert literal.removeprefix(NOT) in text
    for span in SERVER.spans:
        assert span.activity in text
        for deadline in span.deadlines:
            assert deadline in text, f"{deadline} bounds {span.activity}"


def test_the_table_has_each_row_of_the_chart_once() -> None:
    told = sum(len(edge.events) for edge in server_view().edges)
    assert told == len(SERVER.rows)
    for edge in server_view().edges:
        for event in edge.events:
            assert any(
                (row.source, row.event.__name__, row.target, row.when) == (edge.source, event, edge.dest, edge.guards)
                for row in SERVER.rows
            )


@pytest.mark.parametrize("format", FORMATS)
def test_an_endpoint_has_no_lock_and_no_port(format: str) -> None:
    text = render(format, "endpoint")
    assert "Locking" not in text
    assert "PortBound" not in text
    assert "hold_ports" not in text
    assert "watch_process" not in text, "there is no process"
    assert "Healthy" in text


def test_a_local_backend_has_no_short_cut_past_the_lock() -> None:
    assert ("Idle", "Starting") not in {(edge.source, edge.dest) for edge in server_view("echo").edges}
    assert ("Idle", "Starting") in {(edge.source, edge.dest) for edge in server_view().edges}


@pytest.mark.parametrize("backend", [None, "endpoint", "echo"])
def test_a_picture_is_well_formed_and_nothing_lies_outside_it(backend: str | None) -> None:
    for picture in (render("svg", backend), overview(server_view(backend))):
        root = ET.fromstring(picture)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for each in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert 0 <= float(each.attrib["x"]) <= width - float(each.attrib["width"])
            assert 0 <= float(each.attrib["y"]) <= height - float(each.attrib["height"])
        for each in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(each.attrib["x"]) < width
            assert 0 < float(each.attrib["y"]) < height


def test_a_chart_of_ones_own_is_drawn_too() -> None:
    own: Chart[None] = Chart(
        name="door",
        states=(State("Open", "one can pass <through>"), State("Shut", "one cannot", final=True)),
        transitions=(Transition((Go,), ("Open",), "Shut"),),
        reduce=lambda facts, event, at: facts,
    )
    for function, _ in FORMATS.values():
        text = function(view(own), None)
        assert "Open" in text
        assert "Shut" in text
    ET.fromstring(FORMATS["svg"][0](view(own), None))


def test_a_run_lights_up_what_it_did_and_only_its_own_part_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for before, event, after in (("Idle", "Fault", "Failed"), ("Idle", "Start", "Locking")):
        began_at = path.stat().st_size if path.exists() else 0
        journal = Journal("s", [FileSink(path)], epoch=0.0)
        journal.write(Kind.TRANSITION, 1, at=1.0, event=event, before=before, after=after)
        journal.close()
    assert counts(read_journal(path)) == {("Idle", "Fault", "Failed"): 1, ("Idle", "Start", "Locking"): 1}
    picture = tmp_path / "run.svg"
    run_diagram(path, picture, "echo", began_at)
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    lit = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if "lit" in each.attrib.get("class", "")]
    assert len(lit) == 2, "Idle and Locking; what an earlier run did is not shown"
