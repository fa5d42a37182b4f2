"""The store of results: names, parts, terms, and outputs that are not what they should be."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pyarrow.parquet
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.batch.store import Store, open_store
from lifecycle.batch.store import entries as entry
from lifecycle.batch.store.history import History
from lifecycle.batch.store.index import Index
from lifecycle.batch.store.store import WAITING
from lifecycle.errors import OutputError


def fill(store: Store, numbers: range | list[int]) -> None:
    for number in numbers:
        store.append(number, crc32(b"%d" % number), b'{"id":%d}' % number, error=number % 5 == 4)


def ids(path: Path) -> list[int]:
    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path)["id"].to_pylist())
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else zstd.decompress(data) if path.suffix == ".zst" else data
    return [json.loads(line)["id"] for line in data.splitlines()]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("out.jsonl", "out.jsonl"),
        ("out", "out/part-00000.jsonl"),
        ("out/", "out/part-00000.jsonl"),
        ("o.d/", "o.d/part-00000.jsonl"),
    ],
)
def test_a_slash_or_no_suffix_means_a_folder_of_parts(tmp_path: Path, name: str, made: str) -> None:
    with open_store(f"{tmp_path}/{name}") as store:
        fill(store, range(3))
        store.finish()
    assert ids(tmp_path / made) == [0, 1, 2]


@pytest.mark.parametrize("name", ["out.jsonl", "out/"])
def test_an_output_that_was_begun_for_nothing_is_taken_away(tmp_path: Path, name: str) -> None:
    open_store(f"{tmp_path}/{name}").abandon()
    assert list(tmp_path.iterdir()) == []
    with open_store(f"{tmp_path}/{name}") as store:
        fill(store, range(1))
        store.finish()


@pytest.mark.parametrize("name", ["out.jsonl", "out/"])
def test_what_was_there_before_stays_as_does_whatever_has_a_result(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name.endswith("/") else path.touch()
    open_store(path).abandon()
    assert list(tmp_path.rglob("*")) == [path]
    store = open_store(path)
    fill(store, range(1))
    store.abandon()
    store = open_store(path)
    assert store.finished == 1
    store.abandon()
    with open_store(path) as store:
        assert store.finished == 1


def test_an_earlier_runs_output_stays_though_nothing_is_in_it(tmp_path: Path) -> None:
    open_store(tmp_path / "out.jsonl").close()
    open_store(tmp_path / "out.jsonl").abandon()
    assert (tmp_path / ".out.jsonl.stoker" / "journal").exists()


def test_a_folder_that_exists_gets_parts_beside_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "o.d").mkdir()
    (tmp_path / "o.d" / "notes.txt").touch()
    with open_store(tmp_path / "o.d") as store:
        fill(store, range(1))
        store.finish()
    assert sorted(os.listdir(tmp_path / "o.d")) == [".stoker", "notes.txt", "part-00000.jsonl"]


@pytest.mark.parametrize(
    ("name", "format", "says"),
    [
        ("out.parquet", "parquet", "name a folder for them, such as .*/out/"),
        ("out.jsonl.gz", "jsonl", "one file is plain JSON Lines; name it so, or take format jsonl.gz"),
        ("out.parquet", "jsonl", "one file is plain JSON Lines"),
        ("out/", "csv", "output format 'csv' is unknown; known: jsonl, jsonl.gz, jsonl.zst, parquet"),
        ("none/out.jsonl", "jsonl", "there is no folder .*/none; make it first"),
        ("file/out.jsonl", "jsonl", "there is no folder .*/file; make it first"),
        ("file/", "jsonl", "is a file, not a folder"),
        ("pipe", "jsonl", "is no regular file"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_made(tmp_path: Path, name: str, format: str, says: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match=says):
        open_store(f"{tmp_path}/{name}", format=format)
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


def test_standard_output_is_refused() -> None:
    with pytest.raises(OutputError, match="no run could go on with standard output"):
        open_store("-")


def test_two_names_of_one_file_are_one_output(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to("out.jsonl")
    with open_store(tmp_path / "link.jsonl") as store:
        fill(store, range(5))
        with pytest.raises(OutputError, match="is being written"):
            open_store(tmp_path / "out.jsonl")
        store.drop_errors()
    assert (tmp_path / "link.jsonl").is_symlink()
    assert ids(tmp_path / "out.jsonl") == [0, 1, 2, 3]


@pytest.mark.parametrize(("format", "module"), [("parquet", "pyarrow")])
def test_a_format_that_is_not_installed_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OutputError, match=r"pip install 'stoker\[data\]'"):
        open_store(tmp_path / "out", format=format)
    assert not list(tmp_path.iterdir())


def test_a_second_run_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with open_store(tmp_path / "out.jsonl"):
        host = socket.gethostname()
        with pytest.raises(OutputError, match=rf"written by another run \(pid {os.getpid()} on {host}, since \d{{4}}-"):
            open_store(tmp_path / "out.jsonl")
    open_store(tmp_path / "out.jsonl").close()


def test_a_store_that_could_not_be_opened_is_not_locked(tmp_path: Path) -> None:
    open_store(tmp_path / "out.jsonl", terms={"a": 1}).close()
    for _ in range(2):
        with pytest.raises(OutputError, match="begun with a 1, now it is 2"):
            open_store(tmp_path / "out.jsonl", terms={"a": 2})


def test_what_is_finished_is_known_to_the_next_run(tmp_path: Path) -> None:
    with open_store(tmp_path / "out.jsonl") as store:
        fill(store, [7, 0, 4])
        store.append(2, 5, None)
        store.append(3, 6, None, error=True)
    with open_store(tmp_path / "out.jsonl") as store:
        assert all(store.is_done(number, crc32(b"%d" % number)) for number in (0, 4, 7))
        assert store.is_done(2, 5)
        assert store.is_done(3, 6)
        assert not store.is_done(1, 0)
        assert not store.is_done(10**9, 0)
        assert (store.finished, store.failed) == (5, 2)


def test_a_record_that_was_another_one_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "out.jsonl") as store:
        store.append(3, 1, b"{}")
        with pytest.raises(OutputError, match=r"record 3 .* the input has changed; .* name another output"):
            store.is_done(3, 2)


def test_a_record_can_be_finished_once_and_with_one_line(tmp_path: Path) -> None:
    with open_store(tmp_path / "out.jsonl") as store:
        store.append(3, 1, b"{}")
        with pytest.raises(ValueError, match="record 3 is finished already"):
            store.append(3, 1, b"{}")
        with pytest.raises(ValueError, match="newline"):
            store.append(4, 1, b"{}\n{}")
    assert (tmp_path / "out.jsonl").read_bytes() == b"{}\n"


def test_lines_can_be_read_while_the_file_grows(tmp_path: Path) -> None:
    with open_store(tmp_path / "out.jsonl") as store:
        for number in range(3):
            fill(store, [number])
            assert ids(tmp_path / "out.jsonl") == list(range(number + 1))


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_parts_hold_as_many_lines_as_was_asked_and_the_last_one_the_rest(tmp_path: Path, format: str) -> None:
    with open_store(tmp_path / "out", format=format, part_size=3) as store:
        fill(store, range(2))
        store.append(100, 1, None)
        fill(store, range(2, 7))
        assert store.sync_due
        store.sync()
        assert not store.sync_due
        assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == [
            f"part-00000.{format}", f"part-00001.{format}"
        ]  # fmt: skip
        store.finish()
        assert store.complete
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert [ids(part) for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert sorted(os.listdir(tmp_path / "out")) == [".stoker", *(part.name for part in parts)]


def test_parts_are_made_though_nobody_syncs(tmp_path: Path) -> None:
    with open_store(tmp_path / "out", part_size=1) as store:
        fill(store, range(5 * WAITING))
        assert len(list((tmp_path / "out").glob("part-*"))) >= 3 * WAITING


def test_a_job_stays_complete_until_something_is_added(tmp_path: Path) -> None:
    with open_store(tmp_path / "out", part_size=3) as store:
        assert not store.complete
        fill(store, range(2))
        store.finish()
    with open_store(tmp_path / "out", part_size=3) as store:
        assert store.complete
    with open_store(tmp_path / "out", part_size=3) as store:
        assert store.complete
        fill(store, range(2, 4))
        assert not store.complete
        store.finish()
    assert [ids(part) for part in sorted((tmp_path / "out").glob("part-*"))] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("format", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_records_that_failed_are_taken_out_of_every_part(tmp_path: Path, format: str) -> None:
    with open_store(tmp_path / "out", format=format, part_size=3) as store:
        fill(store, [0, 1, 2, 3, 4, 5])
        store.append(8, 1, b'{"id":8}', error=True)
        store.append(9, 1, b'{"id":9}', error=True)
        store.append(19, 1, b'{"id":19}', error=True)
        fill(store, [6, 14])
        store.append(20, 1, None, error=True)
        assert store.drop_errors() == 6
        assert (store.finished, store.failed) == (6, 0)
        assert not store.is_done(20, 1)
        assert not store.is_done(4, 0)
        for number in (4, 8, 9, 14, 19, 20):
            store.append(number, 0, b'{"id":%d}' % number)
        store.finish()
        assert store.drop_errors() == 0
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert [part.name.split(".")[0] for part in parts] == [f"part-0000{number}" for number in (0, 1, 3, 4, 5)]
    assert [ids(part) for part in parts] == [[0, 1, 2], [3, 5], [6, 4, 8], [9, 14, 19], [20]]


def test_records_may_be_added_while_another_thread_syncs(tmp_path: Path) -> None:
    with open_store(tmp_path / "out", format="jsonl.gz", part_size=50) as store:
        over = threading.Event()

        def sync() -> None:
            while not over.is_set():
                store.sync()

        thread = threading.Thread(target=sync)
        thread.start()
        fill(store, range(5000))
        over.set()
        thread.join()
        store.finish()
    with open_store(tmp_path / "out", format="jsonl.gz", part_size=50) as store:
        assert store.finished == 5000
        assert len(list((tmp_path / "out").glob("part-*"))) == 100


def test_a_closed_store_takes_nothing_and_may_be_closed_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out.jsonl")
    store.close()
    store.close()
    with pytest.raises(OutputError, match="is closed"):
        fill(store, [1])


def test_terms_that_differ_are_named_with_both_values(tmp_path: Path) -> None:
    open_store(tmp_path / "out", part_size=5, terms={"model": "m", "shard": (0, 2)}).close()
    open_store(tmp_path / "out", part_size=5, terms={"model": "m", "shard": [0, 2]}).close()
    for changed, says in (
        ({"terms": {"model": "n", "shard": [0, 2]}}, "begun with model m, now it is n"),
        ({"terms": {"model": "m"}}, r"begun with shard \[0,2\], now it is nothing"),
        ({"terms": {"model": "m", "shard": [0, 2], "k": 3}}, "begun with k nothing, now it is 3"),
        ({"part_size": 6}, "begun with part_size 5, now it is 6"),
        ({"format": "parquet"}, "begun with format jsonl, now it is parquet"),
    ):
        asked = {"part_size": 5, "terms": {"model": "m", "shard": [0, 2]}, **changed}
        with pytest.raises(OutputError, match=f"{says}; give it as it was, or name another output"):
            open_store(tmp_path / "out", **asked)  # type: ignore[arg-type]


def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(b"notes\n")
    with pytest.raises(OutputError, match=r"has no journal.*move it away, or name another output"):
        open_store(tmp_path / "out.jsonl")
    assert os.listdir(tmp_path) == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_bytes() == b"notes\n"


def test_an_empty_file_is_taken_for_an_output_that_is_to_begin(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").touch()
    with open_store(tmp_path / "out.jsonl") as store:
        fill(store, [1])


def test_parts_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-00000.parquet").touch()
    with pytest.raises(OutputError, match=r"part-00000\.parquet has no journal"):
        open_store(out)
    assert os.listdir(out) == ["part-00000.parquet"]
    (out / "part-00000.parquet").unlink()
    with open_store(out) as store:
        fill(store, [1])
    (out / "part-00007.jsonl").touch()
    with pytest.raises(OutputError, match=r"part-00007.jsonl was not written by this job"):
        open_store(out)


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"id":77}\n')


def swapped(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"3", b"7"))


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [shorter, longer, swapped, removed])
@pytest.mark.parametrize("name", ["out.jsonl", ".part-00001.g1.jsonl"])
def test_lines_that_were_changed_between_two_runs_are_refused(
    tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    out = tmp_path / ("out.jsonl" if name == "out.jsonl" else "out")
    with open_store(out, part_size=2) as store:
        fill(store, range(4) if name == "out.jsonl" else [0, 1, 3])
    change(out if name == "out.jsonl" else out / name)
    with pytest.raises(OutputError, match=r"(not as the last run left it|is missing).* name another output"):
        open_store(out, part_size=2)


@pytest.mark.parametrize("change", [shorter, longer, removed])
def test_a_whole_part_that_was_changed_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with open_store(tmp_path / "out", part_size=2) as store:
        fill(store, range(4))
        store.finish()
    change(tmp_path / "out" / "part-00001.jsonl")
    with pytest.raises(OutputError, match=r"part-00001.jsonl (is missing|has \d+ bytes, not the 18 that were written)"):
        open_store(tmp_path / "out", part_size=2)


def test_an_output_that_is_moved_while_it_is_written_stops_the_job(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out.jsonl")
    fill(store, range(3))
    (tmp_path / "out.jsonl").rename(tmp_path / "moved.jsonl")
    with pytest.raises(OutputError, match="was moved, removed or cut while it was written"):
        store.sync()
    with pytest.raises(OutputError, match="was moved"):
        fill(store, [4])
    store.close()


def test_a_journal_or_a_header_that_is_gone_is_refused(tmp_path: Path) -> None:
    for name, says in (("journal", "has no journal"), ("job.json", "job.json is missing")):
        out = tmp_path / f"{name}.jsonl"
        with open_store(out) as store:
            fill(store, range(3))
        (tmp_path / f".{out.name}.stoker" / name).unlink()
        with pytest.raises(OutputError, match=says):
            open_store(out)


@given(data=st.data())
@settings(deadline=None)
def test_a_journal_with_a_changed_byte_is_refused_or_tells_nothing_wrong(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    out = tmp_path_factory.mktemp("changed") / "out.jsonl"
    with open_store(out) as store:
        fill(store, range(4))
    journal = out.parent / ".out.jsonl.stoker" / "journal"
    content = bytearray(journal.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    journal.write_bytes(content)
    try:
        store = open_store(out)
    except OutputError as error:
        said = str(error)
    else:
        said = ""
        assert ids(out) == [number for number in range(4) if store.is_done(number, crc32(b"%d" % number))]
        store.close()
    assert not said or "is damaged" in said


@given(data=st.data())
@settings(deadline=None)
def test_cut_anywhere_after_a_crash_what_is_whole_stays_and_the_rest_can_be_done_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    with open_store(folder / "out.jsonl") as store:
        fill(store, range(2))
        store.sync()
        fill(store, range(2, 6))
        shutil.copytree(folder, crashed := folder.with_name(f"{folder.name}-crashed"))
    out, journal = crashed / "out.jsonl", crashed / ".out.jsonl.stoker" / "journal"
    synced = len(b'{"id":0}\n') * 2
    os.truncate(out, data.draw(st.integers(synced, out.stat().st_size)))
    os.truncate(journal, data.draw(st.integers(6 * entry.SIZE, journal.stat().st_size)))
    with open_store(out) as store:
        done = [number for number in range(6) if store.is_done(number, crc32(b"%d" % number))]
        assert done[:2] == [0, 1]
        assert ids(out) == done
        fill(store, [number for number in range(6) if number not in done])
    assert sorted(ids(out)) == list(range(6))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2**32 - 1), st.integers(0, 3)), unique_by=lambda r: r[0]))
def test_the_index_is_a_table(records: list[tuple[int, int, int]]) -> None:
    index = Index()
    for number, check, flags in records:
        index.add(number, check, flags)
    assert {number for number in range(400) if index.state(number)} == {number for number, _, _ in records}
    assert all(index.agrees(number, check) and not index.agrees(number, check ^ 1) for number, check, _ in records)
    assert index.finished == len(records)
    assert index.failed == sum(flags & entry.ERROR for _, _, flags in records)


def table_of(index: Index) -> tuple[int, int, list[tuple[int, int]]]:
    rows = [(index.state(number), index._checks[number]) for number in range(index.finished)]
    return index.finished, index.failed, rows


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 99), st.integers(0, 2**32 - 1), st.booleans(), st.booleans()), max_size=4),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_many_entries_at_once_tell_what_they_tell_one_by_one(
    parts: list[list[tuple[int, int, bool, bool]]],
) -> None:
    raw = [entry.begin(1)]
    number = 0
    for part, records in enumerate(parts):
        raw.append(entry.part(part))
        for length, check, error, skipped in records:
            flags = error * entry.ERROR | skipped * entry.NO_LINE
            raw.append(entry.done(number, check, flags, 0 if skipped else length, 0 if skipped else check))
            number += 1
        raw.append(entry.mark(len(raw), 1, entry.COMPLETE))
        if part % 2:
            raw.append(entry.sealed(part, len(records), 2**33 + part))
    one_by_one, at_once = History(), History()
    for each in raw:
        parsed = entry.parse(each)
        assert parsed is not None
        one_by_one.take(parsed)
    at_once.take_all(entry.columns(b"".join(raw)))
    assert table_of(one_by_one.index) == table_of(at_once.index)
    at_once.index = one_by_one.index
    assert one_by_one == at_once
