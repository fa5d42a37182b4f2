"""What the real driver and the real activities have done of the server's chart, all paths together: all of it but three
pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as File

import pytest

from lifecycle.coverage import Coverage, Pair, coverage
from lifecycle.diagram import CHARTS, infeasible
from lifecycle.host import NoAnswer
from lifecycle.journal import FileSink, Kind, Record
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Wake
from lifecycle.testing import Life, Turn, run_virtual
from tests.simulation.director import Director
from tests.simulation.test_paths import NUMBERED
from tests.simulation.world import World

INFEASIBLE = infeasible("server")
"""Pairs that the guards of the chart's rows and spans rule out, as the walk through its whole model shows."""
NOT_IN_THE_CHART: set[Pair] = {
    (("Locking", "LockAcquired", "PortBound"), ("PortBound", "Launched", "Healthy")),
    (("Healthy", "Sleep", "Asleep"), ("Asleep", "Awoke", "Starting")),
    (("Healthy", "Idled", "Asleep"), ("Asleep", "Awoke", "Starting")),
}
"""Pairs that the chart allows and the activities do not make: `compile_lock` takes none for a server that is not
probed, and `rest` wakes an engine only after Wake. Nothing but the code of these two shows it."""


@pytest.fixture(scope="module")
def lives() -> list[Record]:
    """The journals of lives along all the paths."""
    found: list[Record] = []
    for number, path in NUMBERED:
        world = run_virtual(Director(path).run, backend="asyncio", seed=number, limit=1e5)
        found += world.server.journal.records
    return found + run_virtual(refuses_to_wake, backend="asyncio")


async def refuses_to_wake() -> list[Record]:
    """The director's worlds fall asleep only when they are left alone, so here is one that is woken in its sleep."""
    world = World(Life())
    async with world.server as server:
        await server.healthy()
        await server.sleep()
        world.host.plan("probe", Turn(0.0, NoAnswer("it has gone deaf")))
        server.driver.post(Wake())
        await server.journal.wait(lambda record: record.event == "NotAsleep")
    world.check_end()
    return list(server.journal.records)


def never(found: Coverage) -> list[object]:
    counted = (found.moves, found.pairs, found.outcomes)
    return [each for counts in counted for each, count in counts.items() if not count]


def test_every_transition_every_pair_but_three_and_every_report_of_an_activity_is_taken(lives: list[Record]) -> None:
    found = coverage(SERVER, lives, INFEASIBLE)
    assert set(never(found)) == NOT_IN_THE_CHART
    assert found.unknown == ()


@pytest.mark.parametrize("lost", ["LockSkipped", "Stalled", "BackoffOver"])
def test_what_no_life_has_done_is_named(lives: list[Record], lost: str) -> None:
    fewer: Sequence[Record] = [each for each in lives if each.event != lost]
    found = coverage(SERVER, fewer, INFEASIBLE)
    assert {move[1] for move, count in found.moves.items() if not count} == {lost}
    assert f"– {lost} →" in found.text()


def test_a_pair_is_of_one_life_alone() -> None:
    """The end of one and the beginning of the next are none; nor are two servers' moves."""
    told = [
        Record(1, 0.0, "a", 0, Kind.BEGIN, detail={"chart": "server"}),
        Record(2, 1.0, "a", 1, Kind.TRANSITION, "Start", "Idle", "Locking"),
        Record(1, 2.0, "b", 0, Kind.BEGIN, detail={"chart": "server"}),
        Record(2, 3.0, "b", 1, Kind.TRANSITION, "LockSkipped", "Locking", "PortBound"),
        Record(1, 4.0, "a", 0, Kind.BEGIN, detail={"chart": "server"}),
        Record(2, 5.0, "a", 1, Kind.TRANSITION, "LockSkipped", "Locking", "PortBound"),
    ]
    found = coverage(SERVER, told)
    assert sum(found.moves.values()) == 3
    assert sum(found.pairs.values()) == 0
    again = coverage(SERVER, [*told[:2], replace(told[5], seq=3)])
    assert [pair for pair, count in again.pairs.items() if count] == [
        (("Idle", "Start", "Locking"), ("Locking", "LockSkipped", "PortBound"))
    ]


def test_a_move_that_the_chart_does_not_have_is_told_and_not_counted() -> None:
    found = coverage(SERVER, [Record(1, 1.0, "a", 1, Kind.TRANSITION, "Teleport", "Idle", "Healthy")])
    assert found.unknown == (("Idle", "Teleport", "Healthy"),)
    assert sum(found.moves.values()) == 0
    assert "another version" in found.text()


@pytest.fixture
def journals(tmp_path: File, lives: list[Record]) -> list[str]:
    """Two files with a half of these lives each."""
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        sink = FileSink(path)
        half = lives[: len(lives) // 2] if number == 0 else lives[len(lives) // 2 :]
        for record in half:
            sink.write(record)
        sink.close()
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("format", ["table", "svg", "mermaid", "dot"])
def test_the_command_draws_and_counts_all_the_journals_it_is_given(
    journals: list[str], lives: list[Record], format: str, chart: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from lifecycle.cli import main

    assert main(["diagram", "--coverage", *journals, "--chart", chart, "--format", format]) == 0
    told = capsys.readouterr().out
    assert ("Healthy" in told) or chart not in ("server", "fleet", "group")
    if format == "table" and chart == "server":
        whole = coverage(SERVER, lives, INFEASIBLE)
        assert f"{len(whole.moves)} of {len(whole.moves)} transitions, {sum(whole.moves.values())} times" in told
