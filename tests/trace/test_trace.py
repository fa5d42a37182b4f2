"""A trace shows all that is left of a run, of whatever chart, and lets nothing out of the texts in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.cli import main
from lifecycle.diagram import CHARTS
from lifecycle.errors import JournalError
from lifecycle.journal import Kind, Record, fields_of
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Facts
from lifecycle.trace import lives_of, read
from lifecycle.trace.page import page
from lifecycle.trace.picture import picture
from lifecycle.trace.reading import records_of
from lifecycle.trace.text import text
from tests.trace.journals import FOUND, crash, lines, walk

ALL = [record for chart in CHARTS.values() for record in walk(chart, f"my-{chart.name}")]
WHOLE = lines(ALL)


def data_of(html: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@given(st.integers(0, len(WHOLE)))
def test_a_journal_that_is_cut_anywhere_shows_every_line_before_the_cut(cut: int) -> None:
    records, broken = records_of(WHOLE[:cut].split(b"\n"))
    whole = WHOLE[:cut].count(b"\n")
    assert records[:whole] == ALL[:whole]
    assert len(records) - whole + len(broken) <= 1


@given(st.integers(1, len(ALL) - 1), st.integers(1, 60))
def test_the_record_that_the_next_run_appends_to_a_torn_line_is_not_lost(number: int, size: int) -> None:
    before, torn, after = lines(ALL[:number]), lines(ALL[number : number + 1])[:size], lines(ALL[number:])
    records, broken = records_of((before + torn + after).split(b"\n"))
    assert records == [*ALL[:number], *ALL[number:]]
    assert broken == [number + 1]


def test_what_is_no_journal_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("hello\nworld\n")
    with pytest.raises(JournalError, match=r"other\.txt holds no record of a journal: 2 lines"):
        read(tmp_path / "other.txt")
    with pytest.raises(JournalError, match="cannot be read"):
        read(tmp_path / "missing")


@pytest.mark.parametrize("name", CHARTS)
def test_every_state_of_a_life_is_in_every_format(name: str) -> None:
    lives = lives_of(walk(CHARTS[name], "mine"))
    seen = {stretch.state for stretch in lives[0].stretches}
    assert len(seen) > 3
    told, drawn = text(lives), picture(lives, "title")
    ET.fromstring(drawn)
    (life,) = data_of(page(lives, [], "title"))["lives"]
    named = set(re.findall(r'data-state="(\w+)"', life["chart"]["svg"]))
    for state in seen:
        assert state in told
        assert state in named
    assert {edge["number"] for edge in life["chart"]["edges"]} >= set(
        map(int, re.findall(r'data-edges="(\d+)"', life["chart"]["svg"]))
    )


@pytest.mark.parametrize("name", CHARTS)
def test_the_times_in_the_states_add_up_to_the_whole_life(name: str) -> None:
    records = list(walk(CHARTS[name], "mine"))
    (life,) = lives_of(records)
    assert sum(life.seconds().values()) == pytest.approx(records[-1].time - records[0].time)


@given(st.integers(1, len(ALL)))
def test_a_life_of_which_only_the_latest_is_kept_has_the_same_sums(keep: int) -> None:
    from lifecycle.trace.lives import Life

    whole, short = Life("mine"), Life("mine", keep=keep)
    for record in walk(SERVER, "mine"):
        whole.take(record)
        short.take(record)
    assert short.seconds() == whole.seconds()
    assert (short.moves, short.state, short.began, short.last) == (whole.moves, whole.state, whole.began, whole.last)


def test_a_replica_that_is_started_again_has_two_lives_and_one_row() -> None:
    lives = lives_of([*walk(SERVER, "mine"), *walk(SERVER, "mine", began=3000.0)])
    assert len(lives) == 2
    assert picture(lives, "").count(">mine<") == 1


def test_a_failure_is_told_with_what_shows_it_and_what_to_do() -> None:
    told = text(lives_of(crash()))
    assert "pid 41, port 8000, Healthy after 3.00 s, for 1.00 s" in told
    assert "pid 42, port 8000, Healthy after 3.00 s, for 1.00 s" in told
    assert f"{FOUND['summary']} [{FOUND['cause']}]" in told
    assert f"shown by: {FOUND['evidence']}" in told
    assert f"what to do: {FOUND['advice']}" in told


def test_of_a_server_that_was_given_up_it_is_told_why_there_was_no_further_attempt() -> None:
    facts = fields_of(Facts(max_attempts=1))
    begin, *rest = list(crash())[:6]
    records = [
        Record(1, begin.time, "mine", 0, Kind.BEGIN, after="Idle", detail={"chart": "server", "facts": facts}),
        *rest,
        Record(7, rest[-1].time + 1, "mine", 1, Kind.TRANSITION, "Ended", "Draining", "Failed"),
    ]
    told = text(lives_of(records))
    assert "not tried again: " in told
    (life,) = data_of(page(lives_of(records), [], "t"))["lives"]
    assert "max_attempts" in life["attempts"][-1]["found"]["given_up"]
    assert "not tried again" not in text(lives_of(records[:-1]))


def test_a_journal_without_its_beginning_is_shown_by_the_chart_that_has_its_states() -> None:
    records = list(walk(SERVER, "mine"))[3:]
    (life,) = data_of(page(lives_of(records), [], "t"))["lives"]
    assert life["chart"]["title"] == "The life of a server"


def test_a_chart_of_somebody_else_is_told_without_a_diagram() -> None:
    records = list(walk(SERVER, "mine"))
    object.__setattr__(records[0], "detail", {"chart": "oven", "facts": {}})
    (life,) = data_of(page(lives_of(records), [], "t"))["lives"]
    assert life["chart"] is None
    assert life["records"][-1]["after"] in ("Stopped", "Failed")


def test_a_server_that_cannot_sleep_or_rest_is_drawn_without_these_states() -> None:
    facts = {"local": True, "can_sleep": False, "probed": True, "attaches": False, "idles": False, "keeps": False}
    begin = next(walk(SERVER, "mine", facts))
    (life,) = data_of(page(lives_of([begin]), [], "t"))["lives"]
    assert not {"Asleep", "Dormant", "Adopting"} & set(life["chart"]["states"])
    assert {"Idle", "Healthy", "Draining", "Failed"} <= set(life["chart"]["states"])


def test_the_page_runs_its_own_script_and_nothing_that_a_log_has() -> None:
    html = page(lives_of(crash()), ["<b>careful</b>"], "<i>mine</i>")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 1
    wanted = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{wanted}'" in html
    assert "default-src 'none'" in html
    assert "<img src=x" not in html
    assert "<b>careful" not in html
    assert "<i>mine" not in html
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", html)


def test_of_a_run_that_is_too_long_the_end_is_kept_and_the_page_says_so() -> None:
    lives = lives_of([*walk(SERVER, "early"), *walk(SERVER, "late", began=3000.0)])
    count = len(lives[1].records)
    html = page(lives, [], "t", most=count + 3)
    shown = data_of(html)["lives"]
    assert [len(life["records"]) for life in shown] == [3, count]
    assert "records are left out" in html


def test_the_command_takes_several_journals_names_lives_and_says_what_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_bytes(lines(walk(SERVER, "mine")) + b'{"seq":99,"ti')
    two.write_bytes(lines(walk(CHARTS["fleet"], "all", began=2000.0)))
    assert main(["trace", str(one), str(two)]) == 0
    told = capsys.readouterr().out
    assert "1 broken lines are left out" in told
    assert told.index("server mine") < told.index("fleet all")
    assert main(["trace", str(one), "--server", "mine", "--format", "html", "--output", str(tmp_path / "p.html")]) == 0
    assert data_of((tmp_path / "p.html").read_text())["lives"][0]["server"] == "mine"
    assert main(["trace", str(one), "--server", "other"]) == 2
    assert "these are: mine" in capsys.readouterr().err
    assert main(["trace", str(one), "--output", str(tmp_path / "no" / "where")]) == 2


def test_quiet_records_of_every_kind_are_told_or_left_out_and_never_break_the_text() -> None:
    records = list(walk(SERVER, "mine"))
    last = records[-1]
    for kind in Kind:
        if kind not in (Kind.BEGIN, Kind.TRANSITION):
            detail = {"phase": "load", "done": 1, "total": 3} if kind is Kind.PHASE else {"why": f"of {kind}"}
            records.append(type(last)(99, last.time, "mine", 1, kind, None, last.after, last.after, detail))
    told = text(lives_of(records))
    assert "… load 1/3" in told
    assert "of overrun" in told
    assert "of ignored" not in told
