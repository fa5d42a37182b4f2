"""A display tells the whole truth about a running job, also while nothing happens, and is never a reason to fail."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lifecycle.batch.progress import MARKS, Meter, PlainProgress, RichProgress, clock
from lifecycle.batch.summary import Tally

GUARD = 20.0


class Job:
    """A job on a clock of its own."""

    def __init__(self, total: int | None, earlier: int = 0) -> None:
        self.seconds = 0.0
        self.tally = Tally(total, earlier, now=lambda: self.seconds)

    def run(self, prompts: int, seconds: float, kind: str = "") -> None:
        """So many records end evenly over so many seconds."""
        for _ in range(prompts):
            self.seconds += seconds / prompts
            self.tally.request_began()
            if kind:
                self.tally.request_failed()
                self.tally.record_failed(kind)
            else:
                self.tally.request_answered(1.0, 10, 20)
                self.tally.record_answered()


class Heard(io.StringIO):
    """A stream that tells when a line for which `wanted` holds has been written."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        super().__init__()
        self.wanted = wanted
        self.event = threading.Event()

    def write(self, text: str) -> int:
        if self.wanted(text):
            self.event.set()
        return super().write(text)


def test_a_line_has_all_the_numbers() -> None:
    job = Job(total=120, earlier=10)
    job.run(40, seconds=20)
    job.run(2, seconds=1, kind="refused")
    job.run(1, seconds=1, kind="failed")
    for _ in range(5):
        job.tally.request_began()
    job.tally.retried(3)
    job.tally.record_skipped()
    assert Meter(job.tally).text() == (
        "54/120 prompts, 2.0 prompts/s, 18 prompt and 36 completion tokens/s, 5 in flight, 3 retries, "
        "3 errors (1 failed, 2 refused), 1 skipped, 0:33 left"
    )


def test_before_the_end_of_the_input_is_known_there_is_no_time_left_and_afterwards_there_is() -> None:
    job = Job(total=None)
    meter = Meter(job.tally)
    job.run(10, seconds=10)
    assert meter.text().startswith("10 prompts, ")
    assert meter.text().endswith("time left unknown")
    job.tally.total = 110
    assert meter.text().startswith("10/110 prompts, ")
    assert meter.text().endswith("1:40 left")


def test_rates_are_those_of_the_last_minute() -> None:
    job = Job(total=None)
    meter = Meter(job.tally)
    for _ in range(30):
        job.run(100, seconds=10)
        meter.rates()
    for _ in range(30):
        job.run(1, seconds=10)
        slow = meter.rates()
    assert slow.prompts == pytest.approx(0.1, rel=0.01)
    assert (slow.prompt_tokens, slow.completion_tokens) == pytest.approx((1.0, 2.0), rel=0.01)


def test_while_nothing_finishes_the_time_left_is_told_from_the_whole_run() -> None:
    job = Job(total=200)
    meter = Meter(job.tally)
    job.run(100, seconds=100)
    for _ in range(10):
        job.seconds += 10
        rates = meter.rates()
    assert rates.prompts == 0
    assert meter.seconds_left(rates) == 200


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), max_size=80), st.integers(0, 400))
def test_whatever_happens_rates_and_time_left_are_never_negative_and_memory_is_bounded(
    steps: list[tuple[int, float]], more: int
) -> None:
    job = Job(total=sum(prompts for prompts, _ in steps) + more)
    meter = Meter(job.tally)
    for prompts, seconds in steps:
        job.run(prompts, seconds)
        rates = meter.rates()
        left = meter.seconds_left(rates)
        assert rates.prompts >= 0
        assert left is None or left >= 0
        assert len(meter._marks) <= MARKS + 2


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (90061, "25:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_plain_lines_come_while_nothing_finishes() -> None:
    lines: list[str] = []
    out = Heard(lambda text: lines.append(text) or len(lines) == 3)  # type: ignore[func-returns-value]
    shown = PlainProgress(out, interval=0)
    shown.begin(Tally(7))
    assert out.event.wait(GUARD)
    shown.end()
    assert all(line.startswith("0/7 prompts") for line in lines)


def test_after_the_end_nothing_is_written_and_a_second_end_does_no_harm() -> None:
    out = Heard(lambda text: True)
    shown = PlainProgress(out, interval=0)
    shown.begin(Tally(7))
    assert out.event.wait(GUARD)
    shown.end()
    assert shown._thread is not None
    assert not shown._thread.is_alive()
    shown.end()


def test_a_job_that_never_began_can_be_ended() -> None:
    out = io.StringIO()
    shown = PlainProgress(out)
    shown.say("the server could not be started")
    shown.end()
    assert out.getvalue() == "the server could not be started\n"


def test_a_stream_that_nobody_reads_is_no_reason_to_fail() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            tried.set()
            raise BrokenPipeError

    tried = threading.Event()
    shown = PlainProgress(Broken(), interval=0)
    shown.begin(Tally(1))
    assert tried.wait(GUARD)
    shown.say("still here")
    assert shown._thread is not None
    assert shown._thread.is_alive()
    shown.end()


def test_a_terminal_shows_messages_the_state_and_the_numbers() -> None:
    out = io.StringIO()
    shown = RichProgress(Console(file=out, force_terminal=True, width=200))
    shown.status("Starting")
    shown.say("loading [weights]")
    job = Job(total=50, earlier=3)
    shown.begin(job.tally)
    job.run(7, seconds=7, kind="refused")
    shown.status("Healthy")
    shown.end()
    shown.end()
    text = out.getvalue()
    for said in ("Starting", "loading [weights]", "Healthy", "10/50 prompts, 1.0 prompts/s", "7 errors (7 refused)"):
        assert said in text


def test_a_narrow_terminal_loses_no_number() -> None:
    out = io.StringIO()
    shown = RichProgress(Console(file=out, force_terminal=True, width=40))
    shown.begin(Job(total=None).tally)
    shown.end()
    words = " ".join(out.getvalue().split())
    assert "0 in flight, time left unknown" in words


def test_requests_that_wait_for_the_server_are_not_in_flight_and_there_is_no_telling_how_long() -> None:
    there = 0
    job = Job(total=100)
    job.tally.at_server = lambda: there
    meter = Meter(job.tally)
    job.run(20, seconds=10)
    for _ in range(20):
        job.tally.request_began()
    assert "0 in flight (20 wait for the server)" in meter.text()
    assert "time left unknown" in meter.text()
    there = 15
    assert "15 in flight (5 wait for the server)" in meter.text()
    assert "0:40 left" in meter.text()
    there = 20
    assert "20 in flight, " in meter.text()
