"""Outputs of jobs that are damaged between two runs: gone on with without loss, or refused with a word, and then left
as they are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.batch.store import Store, open_store
from lifecycle.errors import OutputError
from tests.fuzz.damage import HARD, NASTY, edits

COUNT = 9
LINES = [b'{"id":%d}' % number for number in range(COUNT)]
CRASHED = st.booleans()
OUTPUTS = st.sampled_from(["out.jsonl", "out"])


def fill(store: Store) -> None:
    for number, line in enumerate(LINES):
        store.append(number, crc32(line), line, error=number == 4)
        if number == 3:
            store.sync()


def made(folder: Path, name: str, crashed: bool) -> Path:
    """An output with all lines, as a run leaves it that ended or was killed."""
    with open_store(folder / "whole" / name if crashed else folder / name, part_size=4) as store:
        fill(store)
        if crashed:
            shutil.copytree(folder / "whole", folder / "crashed")
    return folder / ("crashed" if crashed else "") / name


@contextmanager
def output(name: str, crashed: bool) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / "whole").mkdir()
        yield made(Path(folder), name, crashed)


def files_of(path: Path) -> dict[str, bytes]:
    found = [path] if path.is_file() else []
    found += [each for each in path.rglob("*") if each.is_file()]
    found += [each for each in path.parent.glob(".out*/*") if each.is_file()]
    return {str(each): each.read_bytes() for each in sorted(found) if each.name not in ("holder", "output.lock")}


def lines_of(path: Path) -> list[bytes]:
    files = [path] if path.is_file() else sorted([*path.glob("part-*.jsonl"), *path.glob(".part-*.jsonl")])
    return [line for each in files for line in each.read_bytes().splitlines(keepends=True)]


def go_on(path: Path) -> str:
    """Open it, and do what is left; the words with which it is refused."""
    try:
        store = open_store(path, part_size=4)
    except OutputError as error:
        return str(error)
    with store:
        for number, line in enumerate(LINES):
            if not store.is_done(number, crc32(line)):
                store.append(number, crc32(line), line)
        store.finish()
    return ""


@HARD
@given(st.data(), OUTPUTS, CRASHED)
def test_a_damaged_journal_is_refused_or_every_record_has_its_line_in_the_end(
    data: st.DataObject, name: str, crashed: bool
) -> None:
    with output(name, crashed) as path:
        (journal,) = (each for each in files_of(path) if each.endswith("/journal"))
        Path(journal).write_bytes(data.draw(edits(Path(journal).read_bytes()))[0])
        said = go_on(path)
        assert str(path) in said or sorted(line.strip() for line in lines_of(path)) == LINES


@HARD
@given(st.data(), OUTPUTS, CRASHED)
@example(None, "out.jsonl", False)
@example(None, "out", True)
def test_a_damaged_header_is_refused_by_name(data: st.DataObject | None, name: str, crashed: bool) -> None:
    with output(name, crashed) as path:
        (header,) = (each for each in files_of(path) if each.endswith("/job.json"))
        whole = Path(header).read_bytes()
        damaged = b"[" * 90_000 if data is None else data.draw(edits(whole) | NASTY.map(lambda bad: (bad, 0)))[0]
        Path(header).write_bytes(damaged)
        before = files_of(path)
        said = go_on(path)
        assert str(path) in said or sorted(line.strip() for line in lines_of(path)) == LINES
        assert not said or files_of(path) == before, "what is refused stays as it is"


@HARD
@given(st.data(), OUTPUTS)
def test_damaged_lines_of_a_killed_run_are_done_again_or_refused_and_no_line_is_torn(
    data: st.DataObject, name: str
) -> None:
    """The damage lies behind what was synced. Before that a crash can change nothing, and only sizes and last lines are
    looked at: another byte in the place of one there is not found out."""
    with output(name, True) as path:
        last = path if path.is_file() else Path(next(each for each in files_of(path) if each.endswith(".jsonl")))
        synced = sum(len(line) + 1 for line in LINES[:4]) if last == path else 0
        whole = last.read_bytes()
        damaged, sound = data.draw(edits(whole[synced:]))
        last.write_bytes(whole[:synced] + damaged)
        said = go_on(path)
        assert str(path) in said or sorted(lines_of(path)) == [line + b"\n" for line in LINES]
        if not said:
            kept = (whole[:synced] + damaged[:sound]).splitlines(keepends=True)
            assert lines_of(path)[: len(kept) - 1] == kept[:-1] or last != path, "what is whole stays where it is"


@HARD
@given(st.lists(NASTY | st.binary(max_size=30), max_size=3).map(b"".join))
def test_whatever_an_earlier_holder_wrote_the_lock_can_be_had(data: bytes) -> None:
    with output("out.jsonl", False) as path:
        (path.parent / ".out.jsonl.stoker" / "holder").write_bytes(data)
        assert go_on(path) == ""
        with open_store(path, part_size=4):
            (path.parent / ".out.jsonl.stoker" / "holder").write_bytes(data)
            with pytest.raises(OutputError, match="being written by"):
                open_store(path, part_size=4)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("name", ["out.jsonl", "out"])
def test_without_damage_it_goes_on(name: str, crashed: bool) -> None:
    with output(name, crashed) as path:
        assert go_on(path) == ""
        assert sorted(line.strip() for line in lines_of(path)) == LINES
