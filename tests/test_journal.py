"""Journals: they replay exactly, survive a torn end and a full disk, and give away a line that was edited."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from lifecycle.errors import JournalError
from lifecycle.journal import (
    KEPT,
    FileSink,
    Journal,
    Kind,
    Record,
    Snapshot,
    load_snapshot,
    read_journal,
    replay,
    save_snapshot,
)
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World

LIVES = (Life(ready=None, exits=0.5, says=((0.0, "phase load 1/2"),)), Life(stolen=True), Life(ready=1.0))


def one_run(path: Path) -> tuple[Facts, str, list[Record]]:
    """A server that crashes, loses its port, and is stopped at the third attempt, with its journal in a file."""

    async def body() -> tuple[Facts, str, list[Record]]:
        world = World(*LIVES, max_attempts=5)
        world.server.journal._sinks.append(FileSink(path))
        async with world.server as server:
            await server.driver.wait("Healthy")
        world.check_end()
        return server.driver.facts, server.state, world.records

    return run_virtual(body)


def test_a_journal_in_a_file_replays_to_where_its_server_stood(tmp_path: Path) -> None:
    facts, state, records = one_run(tmp_path / "journal.jsonl")
    again = list(read_journal(tmp_path / "journal.jsonl"))
    assert msgspec.json.encode(again) == msgspec.json.encode(records)
    stand = replay(again, SERVER, EVENTS, Facts)["simulated"]
    assert (stand.state, stand.facts) == (state, facts)


def test_a_record_has_the_fields_that_a_reader_relies_on(tmp_path: Path) -> None:
    one_run(tmp_path / "j")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "j").read_bytes().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        assert {"seq", "time", "server", "attempt", "kind", "event", "before", "after", "detail"} <= set(line)
    launched = next(line for line in lines if line["after"] == "Starting")
    assert (launched["pid"], launched["port"]) == (100, 30001)
    assert launched["log"].endswith("simulated-1.log")


def test_two_lives_in_one_file_each_begin_anew(tmp_path: Path) -> None:
    one_run(tmp_path / "j")
    _, state, _ = one_run(tmp_path / "j")
    assert replay(read_journal(tmp_path / "j"), SERVER, EVENTS, Facts)["simulated"].state == state


def test_the_file_can_be_read_by_its_user_only(tmp_path: Path) -> None:
    one_run(tmp_path / "new folder" / "j")
    assert stat.S_IMODE((tmp_path / "new folder" / "j").stat().st_mode) == 0o600


@pytest.mark.parametrize("left", [1, 10, -1])
def test_a_torn_last_line_is_left_out(tmp_path: Path, left: int) -> None:
    _, _, records = one_run(tmp_path / "j")
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    torn = lines[-1][:left] if left > 0 else lines[-1][:-2]
    (tmp_path / "j").write_bytes(b"".join([*lines[:-1], torn]))
    assert [record.seq for record in read_journal(tmp_path / "j")] == [record.seq for record in records[:-1]]


def test_a_broken_line_elsewhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    one_run(tmp_path / "j")
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    (tmp_path / "j").write_bytes(b"".join([*lines[:2], lines[2][:20] + b"\n", *lines[3:]]))
    with pytest.raises(JournalError, match=r"j:3: not a journal record"):
        list(read_journal(tmp_path / "j"))


def test_a_journal_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be read"):
        list(read_journal(tmp_path / "none"))


def edits() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(event of the record, what is changed in it, what replay says)."""
    yield "Launched", {"after": "Healthy"}, "the chart says transition PortBound → Starting"
    yield "Launched", {"before": "Locking"}, "says transition Locking → Starting"
    yield "BecameReady", {"kind": Kind.IGNORED}, "says ignored"
    yield "BecameReady", {"event": "Stalled", "detail": {"diagnosis": {"cause": "x", "summary": "y"}}}, "on Stalled"
    yield "BackoffOver", {"event": "Exploded"}, "which the chart does not know"
    yield "Start", {"kind": Kind.BEGIN, "detail": {"chart": "boiler"}}, "is of the chart 'boiler'"


@pytest.mark.parametrize(("event", "change", "says"), list(edits()))
def test_an_edited_record_is_found(tmp_path: Path, event: str, change: dict[str, Any], says: str) -> None:
    _, _, records = one_run(tmp_path / "j")
    at = next(n for n, record in enumerate(records) if record.event == event)
    records[at] = replace(records[at], **change)
    with pytest.raises(JournalError, match=f"record {records[at].seq} .*{says}"):
        replay(records, SERVER, EVENTS, Facts)


@pytest.mark.parametrize("event", ["Start", "LockAcquired", "Launched", "Exited", "BackoffOver", "BecameReady"])
def test_a_missing_record_is_found(tmp_path: Path, event: str) -> None:
    _, _, records = one_run(tmp_path / "j")
    at = next(n for n, record in enumerate(records) if record.event == event and record.kind is Kind.TRANSITION)
    with pytest.raises(JournalError, match="the chart says"):
        replay(records[:at] + records[at + 1 :], SERVER, EVENTS, Facts)


def test_a_record_before_the_beginning_is_found(tmp_path: Path) -> None:
    _, _, records = one_run(tmp_path / "j")
    with pytest.raises(JournalError, match="comes before the beginning of 'simulated'"):
        replay(records[1:], SERVER, EVENTS, Facts)


def test_a_full_disk_costs_lines_and_the_next_whole_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FileSink(tmp_path / "j")
    record = Record(1, 1.0, "s", 0, Kind.PHASE)
    sink.write(record)
    write = os.write
    outcomes: Iterator[int | OSError] = iter([5, OSError(errno.ENOSPC, "No space left on device")])

    def full(fd: int, data: bytes) -> int:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return write(fd, data[:outcome])

    monkeypatch.setattr("os.write", full)
    sink.write(replace(record, seq=2))
    sink.write(replace(record, seq=3))
    monkeypatch.setattr("os.write", write)
    sink.write(replace(record, seq=4))
    sink.close()
    sink.write(replace(record, seq=5))  # closed: goes nowhere
    assert sink.lost == 2
    assert len(caplog.records) == 1  # said once
    lines = (tmp_path / "j").read_bytes().splitlines()
    assert len(lines) == 3
    assert [msgspec.json.decode(lines[n], type=Record).seq for n in (0, 2)] == [1, 4]


def test_a_server_goes_on_when_its_journal_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = FileSink(tmp_path / "j")

    async def body() -> str:
        world = World(Life())
        world.server.journal._sinks.append(sink)
        async with world.server as server:
            await server.healthy()
        return server.state

    with monkeypatch.context() as patched:
        patched.setattr("lifecycle.journal.os.write", full)
        assert run_virtual(body) == "Stopped"
    assert sink.lost > 5


def test_a_journal_in_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be written"):
        FileSink(tmp_path / "file" / "j")


@pytest.mark.anyio
async def test_a_record_that_is_there_already_is_not_waited_for() -> None:
    journal = Journal("s")
    journal.write(Kind.PHASE, 0, detail={"n": 1})
    journal.write(Kind.PHASE, 0, detail={"n": 2})
    found = await journal.wait(lambda record: record.kind is Kind.PHASE)
    later = await journal.wait(lambda record: record.kind is Kind.PHASE, after=found.seq)
    assert (found.detail["n"], later.detail["n"]) == (1, 2)


@pytest.mark.anyio
async def test_all_who_wait_for_a_record_get_it() -> None:
    journal, got = Journal("s"), list[int]()

    async def waiter() -> None:
        got.append((await journal.wait(lambda record: record.attempt == 3)).seq)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(waiter)
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            journal.write(Kind.PHASE, 2)
            await anyio.wait_all_tasks_blocked()
            assert got == []
            journal.write(Kind.PHASE, 3)
    assert got == [2, 2]


@pytest.mark.anyio
async def test_memory_is_bounded_and_old_records_are_gone_from_it() -> None:
    journal = Journal("s", epoch=0.0)
    for number in range(KEPT + 10):
        journal.write(Kind.PHASE, number)
    assert len(journal.records) == KEPT
    assert (await journal.wait(lambda record: True)).attempt == 10
    assert (await journal.wait(lambda record: True, after=KEPT + 9)).attempt == KEPT + 9


@pytest.mark.anyio
async def test_a_records_time_never_goes_back_and_when_the_event_was_taken_is_kept() -> None:
    journal = Journal("s", epoch=0.0)
    late = journal.write(Kind.CLEANUP_ERROR, 0, at=8.0)
    early = journal.write(Kind.TRANSITION, 0, at=5.0)
    after = journal.write(Kind.TRANSITION, 0, at=9.0)
    assert [(r.time, r.taken) for r in (late, early, after)] == [(8.0, None), (8.0, 5.0), (9.0, None)]


def test_a_snapshot_comes_back_whole(tmp_path: Path) -> None:
    facts, state, records = one_run(tmp_path / "j")
    snapshot = Snapshot(len(records), state, facts)
    save_snapshot(tmp_path / "deep" / "s", snapshot)
    assert load_snapshot(tmp_path / "deep" / "s", Facts) == snapshot
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["s"]
    assert stat.S_IMODE((tmp_path / "deep" / "s").stat().st_mode) == 0o600


def test_a_snapshot_says_where_a_replay_of_its_records_stands(tmp_path: Path) -> None:
    async def body() -> None:
        world = World(Life(), max_attempts=3)
        async with world.server as server:
            await server.healthy()
            snapshot = server.snapshot()
            stand = replay(world.records, SERVER, EVENTS, Facts)["simulated"]
            assert (snapshot.seq, snapshot.state, snapshot.facts) == (len(world.records), stand.state, stand.facts)

    run_virtual(body)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"seq": 1}', b'{"seq": 1, "state": "Idle", "facts": 7}'])
def test_what_is_not_a_snapshot_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(JournalError, match="cannot be read"):
        load_snapshot(tmp_path / "s", Facts)


def test_a_file_that_is_no_journal_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    for content in ('{"prompt": "a"}\n', "my notes"):
        path.write_text(content)
        with pytest.raises(JournalError, match="holds something else; name another file"):
            FileSink(path)
        assert path.read_text() == content


def test_a_listener_that_raises_disturbs_neither_the_journal_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    journal, heard = Journal("s", epoch=0.0), list[Record]()

    def broken(record: Record) -> None:
        raise OSError("the terminal has gone")

    journal.listen(broken)
    journal.listen(heard.append)
    for at in (1.0, 2.0):
        journal.write(Kind.PHASE, 1, at=at)
    assert heard == list(journal.records)
    assert "the terminal has gone" in caplog.text
