"""The page is sent what is new and no more, keeps a bounded past, and reads the figures of engines rightly."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.adapter import EngineLoad
from lifecycle.journal import Kind, Record
from lifecycle.ui.board import KEPT, Board
from lifecycle.ui.live import overlap
from lifecycle.ui.meters import Meters, Own, Sample, between, together
from tests.trace.journals import FOUND, crash


def board_of(*records: Record) -> Board:
    board = Board()
    for record in records:
        board(record)
    return board


def test_the_first_look_has_all_and_the_next_only_what_is_new() -> None:
    records = list(crash())
    board, seen = board_of(*records[:5]), dict[str, int]()
    (first,) = board.news(seen)
    assert first["state"] == "Healthy"
    assert first["chart"]["states"]
    assert len(first["events"]) == 5
    assert board.news(seen) == []
    board(records[5])
    (second,) = board.news(seen)
    assert [event["event"] for event in second["events"]] == ["Exited"]
    assert "chart" not in second
    assert second["attempts"][0]["found"]["cause"] == FOUND["cause"]
    assert second["failures"] == 1


def test_a_phase_sends_no_attempts_again() -> None:
    records = list(crash())
    board, seen = board_of(*records[:4]), dict[str, int]()
    board.news(seen)
    phase = replace(records[3], kind=Kind.PHASE, event=None, before="Starting", detail={"phase": "load", "done": 1,
                    "total": 8})  # fmt: skip
    board(phase)
    (news,) = board.news(seen)
    assert "attempts" not in news
    assert news["doing"] == "load 1/8"
    assert news["phases"] == [{"name": "load", "words": "load 1/8", "done": 1, "total": 8, "began": phase.time}]


def test_the_time_in_the_present_state_is_left_to_the_page_which_has_a_clock() -> None:
    records = list(crash())[:4]
    phase = replace(records[3], kind=Kind.PHASE, event=None, before="Starting", time=records[3].time + 7)
    (news,) = board_of(*records, phase).news({})
    assert news["since"] == records[3].time
    assert news["seconds"]["Starting"] == 0.0
    assert news["seconds"]["Locking"] == 1.0


def test_phases_of_a_drain_are_not_those_of_a_start() -> None:
    records = list(crash())
    drained = replace(records[5], kind=Kind.PHASE, event=None, detail={"phase": "drained"})
    (news,) = board_of(*records[:6], drained).news({})
    assert news["phases"] == []
    assert news["doing"].startswith("drained")


def test_a_server_that_restarts_for_weeks_takes_no_more_room_than_one_that_has_just_begun() -> None:
    begin, *rest = crash()
    board = board_of(begin)
    for round in range(KEPT):
        for record in rest[:6]:
            board(replace(record, time=record.time + round * 10, attempt=round + 1))
    (news,) = board.news({})
    assert len(news["events"]) == KEPT
    assert len(board.stories["mine"].life.records) <= KEPT
    assert news["failures"] == KEPT
    assert news["seconds"]["Healthy"] == pytest.approx(KEPT * 1.0)
    assert len(news["attempts"]) <= 20


def test_a_replica_that_is_replaced_begins_anew_and_its_failures_still_count() -> None:
    (news,) = board_of(*crash(), *crash(began=3000.0)).news({})
    assert news["failures"] == 2
    assert news["attempt"] == 2
    assert news["began"] == 3000.0


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_the_new_lines_of_a_log_are_those_after_what_both_looks_have(before: list[str], now: list[str]) -> None:
    same = overlap(before, now)
    assert now[:same] == (before[-same:] if same else [])
    assert all(before[-more:] != now[:more] for more in range(same + 1, min(len(before), len(now)) + 1))


def test_counters_of_another_process_are_no_throughput() -> None:
    before = EngineLoad(1, 0, (), answered=500.0, tokens=9000.0, seconds=50.0)
    assert between(before, EngineLoad(2, 3, (), answered=1.0, tokens=7.0, seconds=0.5), 2.0) == Sample(2, 3)
    assert between(before, None, 2.0) == Sample()
    assert between(None, EngineLoad(2, 3, (1.0,)), 2.0) == Sample(2, 3)


def test_the_mean_of_a_fleet_is_that_of_its_requests_not_of_its_servers() -> None:
    busy, idle = Sample(1, 0, answered=9.0, mean=1.0), Sample(1, 0, answered=1.0, mean=11.0)
    assert together([busy, idle, Sample()]) == Sample(2, 0, answered=10.0, mean=2.0)
    assert together([]) == Sample()


async def test_a_server_that_does_not_answer_costs_its_own_figures_only() -> None:
    class Silent:
        async def load(self) -> EngineLoad | None:
            await anyio.sleep_forever()
            return None

    class Busy:
        async def load(self) -> EngineLoad | None:
            return EngineLoad(4, 2, ())

    meters = Meters("all", lambda: {"a": Silent(), "b": Busy()})
    found = await meters.look(2.0, patience=0.01)
    assert found == {"b": {"running": 4, "waiting": 2}, "all": {"running": 4, "waiting": 2}}


async def test_where_this_program_has_sent_nothing_it_says_nothing_of_what_others_sent() -> None:
    meters = Meters("all", dict, Own())
    assert await meters.look(2.0) == {}


pytestmark = pytest.mark.anyio
