"""Folders, globs and pipes: every file that is meant, in one order, and nothing left out in silence."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.batch.sources import Source, open_source
from lifecycle.errors import InputError


def numbered(source: Source) -> list[tuple[int, bytes, str]]:
    return [(row.number, row.data, row.where) for row in source.rows()]


def fill(folder: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_files_of_a_folder_are_numbered_through_by_name(tmp_path: Path, sizes: list[int]) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    for part, size in reversed(list(enumerate(sizes))):
        data = b"".join(b"[%d, %d]\n" % (part, line) for line in range(size))
        name, packed = (f"{part}.jsonl.gz", gzip.compress(data, mtime=0)) if part % 2 else (f"{part}.ndjson", data)
        (tmp_path / name).write_bytes(packed)
    rows = numbered(open_source(str(tmp_path)))
    assert [data for _, data, _ in rows] == [
        b"[%d, %d]" % (part, line) for part, size in enumerate(sizes) for line in range(size)
    ]
    assert [number for number, _, _ in rows] == list(range(sum(sizes)))


def test_kinds_may_be_mixed_and_a_row_says_its_file(tmp_path: Path) -> None:
    fill(tmp_path, a__jsonl=b"1\n\n2\n", b__gz=gzip.compress(b"3\n", mtime=0))
    pq.write_table(pa.table({"x": [4]}), tmp_path / "c.parquet")
    source = open_source(f"{tmp_path}/")
    assert numbered(source) == [
        (0, b"1", "a.jsonl, line 1"),
        (1, b"2", "a.jsonl, line 3"),
        (2, b"3", "b.gz, line 1"),
        (3, b'{"x":4}', "c.parquet, row 1"),
    ]
    assert source.paths == tuple(tmp_path / name for name in ("a.jsonl", "b.gz", "c.parquet"))
    assert source.total() is None


def test_the_total_of_many_parquet_files_is_known(tmp_path: Path) -> None:
    for part in range(3):
        pq.write_table(pa.table({"x": list(range(part))}), tmp_path / f"{part}.parquet")
    assert open_source(str(tmp_path)).total() == 3


def test_hidden_files_readmes_and_a_jobs_own_are_no_data(tmp_path: Path) -> None:
    fill(tmp_path, a__jsonl=b"1\n", __hidden=b"x", _SUCCESS=b"", README__md=b"# x", LICENSE=b"x", b__jsonl__tmp=b"x")
    fill(tmp_path, out__jsonl__journal__jsonl=b"x", out__lock=b"")
    assert [data for _, data, _ in numbered(open_source(str(tmp_path)))] == [b"1"]


def test_a_folder_with_something_else_in_it_is_refused_rather_than_read_in_part(tmp_path: Path) -> None:
    fill(tmp_path, a__jsonl=b"1\n", notes__txt=b"x")
    with pytest.raises(InputError, match=r"has notes\.txt, none of JSON Lines .* and Parquet .*'.*/\*\.jsonl'"):
        open_source(str(tmp_path))
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "more").mkdir()
    with pytest.raises(InputError, match="has the folder more in it"):
        open_source(str(tmp_path))


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder without data; looked for JSON Lines .* and Parquet"):
        open_source(str(tmp_path))


def test_a_glob_takes_what_matches_by_path_and_goes_down(tmp_path: Path) -> None:
    for folder in ("b", "a", ".git"):
        (tmp_path / folder).mkdir()
        fill(tmp_path / folder, x__jsonl=folder.encode(), x__jsonl__tmp=b"?")
    found = numbered(open_source(f"{tmp_path}/**/*.jsonl*"))
    assert [data for _, data, _ in found] == [b"a", b"b"]
    assert found[1][2] == f"{tmp_path}/b/x.jsonl, line 1"


def test_a_glob_that_matches_nothing_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"input \*\.jsonl: no file matches; looked in {tmp_path}"):
        open_source("*.jsonl")


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    fill(tmp_path, a1__jsonl=b"glob\n")
    (tmp_path / "a[1].jsonl").write_bytes(b"file\n")
    assert [data for _, data, _ in numbered(open_source(f"{tmp_path}/a[1].jsonl"))] == [b"file"]


def test_a_bad_file_in_a_folder_is_named_when_the_folder_is_opened(tmp_path: Path) -> None:
    fill(tmp_path, a__jsonl=b"1\n", b__parquet=b"PAR1 and no more")
    with pytest.raises(InputError, match=r"b\.parquet is not a whole Parquet file"):
        open_source(str(tmp_path))


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), sink)
    return sink.getvalue()


PIPED = [
    (b'{"x":1}\n', "line 1"),
    (b"\xef\xbb\xbf" b'{"x":1}', "line 1"),
    (gzip.compress(b'{"x":1}\n', mtime=0), "line 1"),
    (parquet(), "row 1"),
]


@pytest.mark.parametrize(("data", "where"), PIPED)
def test_standard_input_can_be_read_twice_whatever_its_kind(
    monkeypatch: pytest.MonkeyPatch, data: bytes, where: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    source = open_source("-")
    assert numbered(source) == numbered(source) == [(0, b'{"x":1}', where)]
    assert source.paths == ()
    source.close()
    source.close()


@pytest.mark.parametrize(("data", "where"), PIPED)
def test_a_named_pipe_can_be_read_twice(tmp_path: Path, data: bytes, where: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    source = open_source(str(pipe))
    writer.join()
    assert numbered(source) == numbered(source) == [(0, b'{"x":1}', where)]
    source.close()


def test_standard_input_that_is_cut_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"1\n" * 999, mtime=0)[:-9])))
    with pytest.raises(InputError, match="input standard input cannot be read after line"):
        numbered(open_source("-"))


def test_standard_input_that_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        open_source("-")


def test_nothing_is_left_of_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    source = open_source("-")
    assert list(tmp_path.iterdir()) == []  # not even while it is open: so not after a kill either
    source.close()
