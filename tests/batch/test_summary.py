"""What a job came to: every record is counted once, and the percentiles of a million requests are right within 1 %."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.batch.latency import PRECISION, Histogram
from lifecycle.batch.summary import Summary, Tally, is_cut, usage_of, write_summary
from lifecycle.errors import OutputError


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def finished(kinds: list[str], *, total: int | None = None, seconds: float = 10.0) -> Summary:
    """The summary of a run whose records ended so: "" answered, "skip" skipped, else with an error of that kind."""
    clock = Clock()
    tally = Tally(total, now=clock)
    for kind in kinds:
        tally.request_began()
        if not kind:
            tally.request_answered(0.5, 3, 7)
            tally.record_answered()
        else:
            tally.request_failed()
            tally.record_skipped() if kind == "skip" else tally.record_failed(kind)
    clock.seconds += seconds
    assert tally.in_flight == 0
    return tally.summary()


def answer(seconds: float, **usage: Any) -> tuple[dict[str, Any], float]:
    return {"id": "a", "generations": [{"text": "x", "usage": usage}]}, seconds


@given(st.lists(st.sampled_from(["", "skip", "refused", "failed", "malformed"])), st.integers(0, 9), st.integers(0, 9))
def test_every_record_of_the_input_is_counted_in_exactly_one_place(kinds: list[str], earlier: int, left: int) -> None:
    summary = replace(finished(kinds, total=len(kinds) + earlier + left), earlier=earlier)
    records = summary.as_json()["records"]
    places = ("finished_before", "answered", "failed", "skipped", "left")
    assert sum(records[name] for name in places) == records["total"]
    assert records["left"] == left
    assert records["failed"] == sum(records["failed_by_kind"].values())


def test_rates_are_of_the_whole_run_and_count_what_was_answered() -> None:
    summary = finished(["", "", "refused", ""], seconds=10.0)
    assert summary.rates == {"prompts": 0.3, "prompt_tokens": 0.9, "completion_tokens": 2.1}


def test_a_run_of_no_time_has_rates_of_zero() -> None:
    assert set(finished([""], seconds=0.0).rates.values()) == {0.0}


def test_the_text_tells_what_is_left_and_how_to_go_on() -> None:
    assert "1 of 3 prompts answered in 10.0 s, 2 are left: run the same command again" in finished([""], total=3).text()
    assert "the input was not read to its end: run the same command again" in finished([""]).text()
    assert "again" not in finished([""], total=1).text()


def test_the_text_names_errors_by_kind_and_the_percentiles() -> None:
    text = finished(["", "refused", "failed", "refused"], total=4).text()
    assert "lines with an error: 1 failed, 2 refused" in text
    for name in ("p50", "p90", "p95", "p99", "max"):
        assert f"{name} 0.50 s" in text


def test_the_server_is_told_of_where_there_is_something_to_tell() -> None:
    summary = finished([""], total=1)
    assert "server" not in summary.text()
    told = replace(summary, uptime=61.25, starts=3, restarts=2, retries=5)
    assert "up for 61.2 s, the server was started 3 times, 5 requests were sent again" in told.text()
    assert told.as_json()["server"] == {"uptime_seconds": 61.25, "starts": 3, "restarts": 2}


@pytest.mark.parametrize(("kinds", "earlier_errors", "code"), [([""], 0, 0), (["failed"], 0, 3), ([""], 1, 3)])
def test_lines_with_errors_decide_the_exit_code(kinds: list[str], earlier_errors: int, code: int) -> None:
    assert replace(finished(kinds), earlier_errors=earlier_errors).exit_code == code


def test_skipped_records_are_no_errors() -> None:
    assert finished(["skip"], total=1).exit_code == 0


def test_a_line_with_an_error_has_no_latency_and_no_tokens() -> None:
    tally = Tally(2)
    tally.request_began()
    tally.count({"id": "a", "error": {"kind": "refused"}}, 99.0)
    tally.request_began()
    tally.count(*answer(2.0, prompt_tokens=3, completion_tokens=4))
    summary = tally.summary()
    assert summary.latency["max"] == 2.0
    assert (summary.prompt_tokens, summary.completion_tokens, summary.errors) == (3, 4, {"refused": 1})


@pytest.mark.parametrize(
    "line",
    [
        {"generations": [{"usage": None}]},
        {"generations": [{"usage": {"prompt_tokens": "many", "completion_tokens": None}}]},
        {"generations": [{}]},
        {"response": None},
        {"response": {"body": "text"}},
        {"response": {"body": {"usage": [1, 2]}}},
    ],
)
def test_a_usage_that_is_no_usage_counts_as_nothing(line: dict[str, Any]) -> None:
    assert usage_of(line) == (0, 0)


def test_the_file_holds_the_summary_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    summary = finished(["", "failed"], total=5)
    write_summary(tmp_path / "summary.json", summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary.as_json()
    assert [each.name for each in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"none/s.json cannot be written: No such file or directory; name a file"):
        write_summary(tmp_path / "none" / "s.json", finished([]))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="folder cannot be written: Is a directory"):
        write_summary(tmp_path / "folder", finished([]))
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=300), st.floats(0, 1))
def test_a_percentile_is_within_its_precision_of_the_exact_one(values: list[float], part: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[int(part * (len(values) - 1))]
    assert histogram.at(part) == pytest.approx(exact, rel=PRECISION + 1e-9)
    assert histogram.percentiles()["max"] == max(values)


@given(st.lists(st.floats(0, 1e9), max_size=50))
def test_percentiles_rise_up_to_the_max(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = list(histogram.percentiles().values())
    assert found == sorted(found)
    assert bool(found) == bool(values)


def test_many_latencies_take_no_more_room_than_few() -> None:
    histogram, roll = Histogram(), random.Random(1)
    for _ in range(100_000):
        histogram.add(10 ** roll.uniform(-9, 5))
    assert histogram.count == 100_000
    assert len(histogram._buckets) < 1300


@pytest.mark.parametrize(
    ("answer", "cut"),
    [
        ({"choices": [{"finish_reason": "length"}]}, True),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}]}, True),
        ({"choices": [{"finish_reason": "stop"}]}, False),
        ({"choices": [{}]}, False),
        ({"choices": None}, False),
        ({"choices": ["length"]}, False),
        ({}, False),
    ],
)
def test_an_answer_that_was_cut_is_known_by_its_finish_reason(answer: dict[str, Any], cut: bool) -> None:
    assert is_cut(answer) is cut


def test_answers_that_were_cut_are_told() -> None:
    tally = Tally(2)
    for cut in (True, False):
        tally.request_began()
        tally.request_answered(1.0, 1, 1, cut=cut)
        tally.record_answered()
    assert "1 answers were cut at their longest (finish_reason: length): see --max-tokens" in tally.summary().text()
    assert tally.summary().as_json()["requests"]["cut_at_length"] == 1
    assert "cut" not in Tally(2).summary().text()
