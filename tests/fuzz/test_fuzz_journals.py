"""Journals, snapshots and records of servers that are damaged: a named error, and what is whole before is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.errors import JournalError
from lifecycle.journal import FileSink, Record, Snapshot, load_snapshot, read_journal, replay, save_snapshot
from lifecycle.resources.reap import records
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from lifecycle.testing import Life, run_virtual
from tests.fuzz.damage import HARD, NASTY, edits
from tests.simulation.world import World

DEEP = b'{"seq":1,"time":1,"server":"a","attempt":1,"kind":"phase","detail":{"x":' + b"[" * 90_000
LIVES = (Life(ready=None, exits=0.5, says=((0.0, "phase load 1/2"),)), Life(stolen=True), Life(ready=1.0))


def lived() -> tuple[list[Record], Facts]:
    """A server that crashes, loses its port, and is stopped at the third attempt."""

    async def body() -> tuple[list[Record], Facts]:
        world = World(*LIVES, max_attempts=5)
        async with world.server as server:
            await server.driver.wait("Healthy")
        return world.records, server.driver.facts

    return run_virtual(body)


RECORDS, FACTS = lived()
LINES = [msgspec.json.encode(record) + b"\n" for record in RECORDS]
JOURNAL = b"".join(LINES)
FIELDS = st.sampled_from(["detail", "event", "time", "before", "after", "kind"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(data)
    return path


@contextmanager
def may_say(words: str) -> Iterator[None]:
    """What is inside goes well, or raises a `JournalError` with these words; nothing else."""
    said = words
    with suppress(JournalError):
        try:
            yield
        except JournalError as error:
            said = str(error)
            raise
    assert words in said


def collected(path: Path) -> list[Record]:
    found: list[Record] = []
    with may_say(str(path)):
        found.extend(read_journal(path))
    return found


@HARD
@given(edits(JOURNAL))
@example((DEEP + b"\n", 0))
def test_every_whole_record_before_the_damage_is_read(tmp_path: Path, damaged: tuple[bytes, int]) -> None:
    data, sound = damaged
    found = collected(write(tmp_path, data))
    whole = JOURNAL[:sound].count(b"\n")
    assert [msgspec.json.encode(record) + b"\n" for record in found[:whole]] == LINES[:whole]


@HARD
@given(st.lists(NASTY | st.binary(max_size=50) | st.sampled_from(LINES), max_size=6).map(b"".join))
@example(DEEP)
@example(DEEP + b"\n")
def test_any_bytes_are_a_journal_or_a_named_error(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, data)
    collected(path)
    with may_say(str(path)):
        FileSink(path).close()
    assert path.read_bytes() == data, "what is no journal stays as it is"


@HARD
@given(edits(JOURNAL))
def test_a_damaged_journal_replays_or_is_a_named_error(tmp_path: Path, damaged: tuple[bytes, int]) -> None:
    with may_say("record"):
        replay(collected(write(tmp_path, damaged[0])), SERVER, EVENTS, Facts)


@HARD
@given(st.integers(0, len(RECORDS) - 1), FIELDS, VALUES)
@example(0, "detail", {"chart": "server", "facts": None})
def test_a_record_of_another_shape_replays_or_is_a_named_error(
    tmp_path: Path, number: int, field: str, value: object
) -> None:
    plain = msgspec.json.decode(LINES[number])
    lines = [*LINES[:number], msgspec.json.encode({**plain, field: value}) + b"\n", *LINES[number + 1 :]]
    with may_say("record"):
        replay(read_journal(write(tmp_path, b"".join(lines))), SERVER, EVENTS, Facts)


@HARD
@given(st.data())
@example(None)
def test_a_damaged_snapshot_is_one_or_a_named_error(tmp_path: Path, data: st.DataObject | None) -> None:
    path = tmp_path / "snapshot"
    save_snapshot(path, Snapshot(7, "Healthy", FACTS))
    whole = path.read_bytes()
    assert load_snapshot(path, Facts) == Snapshot(7, "Healthy", FACTS)
    path.write_bytes(b"[" * 90_000 if data is None else data.draw(edits(whole))[0])
    with may_say(str(path)):
        load_snapshot(path, Facts)


@HARD
@given(st.lists(NASTY | st.binary(max_size=50), max_size=4).map(b"".join))
@example(b"[" * 90_000)
def test_no_file_among_the_records_of_servers_hides_the_others(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "servers"
    folder.mkdir(exist_ok=True)
    (folder / "a.json").write_bytes(data)
    assert list(records(tmp_path)) == []


def test_the_sound_journal_is_read_and_replays(tmp_path: Path) -> None:
    assert len(collected(write(tmp_path, JOURNAL))) == len(LINES)
    assert [each.state for each in replay(RECORDS, SERVER, EVENTS, Facts).values()] == ["Stopped"]
    with pytest.raises(JournalError):
        list(read_journal(write(tmp_path, LINES[0] + b"{\n" + LINES[1])))
