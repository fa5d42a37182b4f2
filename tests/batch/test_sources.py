"""Every record of a file of lines is a row, in order, numbered the same in every run."""

from __future__ import annotations

import errno
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.batch.sources import Row, open_source
from lifecycle.batch.sources.lines import lines
from lifecycle.errors import InputError

VALUE = st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
RECORD = st.dictionaries(st.text(max_size=5), VALUE, max_size=3)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n \t\r\n", b" \n\r\n"])


def rows_of(spec: str | Path) -> list[Row]:
    source = open_source(str(spec))
    try:
        return list(source.rows())
    finally:
        source.close()


def data_of(spec: str | Path) -> list[bytes]:
    return [row.data for row in rows_of(spec)]


@given(each=st.lists(st.tuples(RECORD, ENDS)), bom=st.booleans(), last_newline=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_record_is_a_row_whatever_ends_the_lines(
    tmp_path: Path, each: list[tuple[dict[str, object], bytes]], bom: bool, last_newline: bool
) -> None:
    data = b"".join(json.dumps(record, ensure_ascii=False).encode() + end for record, end in each)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * bom + (data if last_newline else data.rstrip()))
    rows = rows_of(path)
    assert [json.loads(row.data) for row in rows] == [record for record, _ in each]
    assert [row.number for row in rows] == list(range(len(each)))


def test_a_row_says_its_line_as_an_editor_counts_it(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'\n{"a": 1}\n\n\n{"a": 2}')
    assert [(row.number, row.where) for row in rows_of(tmp_path / "in")] == [(0, "line 2"), (1, "line 5")]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b" \r\n\t\n"])
def test_a_file_without_records_has_no_rows(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    assert rows_of(tmp_path / "in.jsonl") == []


@pytest.mark.parametrize("line", [b'{"a": "\x00"}', b"\xc3(", b"\xff\xff\xff", b"not json", b"{" + b"\x0c"])
def test_what_is_no_json_stays_as_it_is(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(line + b"\n{}\n")
    assert data_of(tmp_path / "in.jsonl") == [line, b"{}"]


def test_a_line_of_a_hundred_megabytes_is_one_row(tmp_path: Path) -> None:
    long = b'{"prompt": "%s"}' % (b"x" * 100_000_000)
    (tmp_path / "in.jsonl").write_bytes(b"{}\n" + long + b"\n{}")
    assert [len(data) for data in data_of(tmp_path / "in.jsonl")] == [2, len(long), 2]


def test_a_source_can_be_read_again_and_by_two_at_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"1\n2\n3\n")
    source = open_source(str(tmp_path / "in.jsonl"))
    first, second = source.rows(), source.rows()
    assert [next(first).data, next(second).data, next(first).data] == [b"1", b"1", b"2"]
    assert [row.data for row in source.rows()] == [b"1", b"2", b"3"]
    assert source.total() is None
    assert source.paths == (tmp_path / "in.jsonl",)


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    with (tmp_path / "in.jsonl").open("wb") as file:
        for number in range(40):
            file.write(b'{"number": %d, "prompt": "%s"}\n' % (number, b"x" * 1000) * 1000)
    source = open_source(str(tmp_path / "in.jsonl"))
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.rows()) == 40_000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # of 41 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b'[\n{"prompt": "a"}\n]', b'[{"prompt": "a"}]', b'{\n"prompt": "a"\n}'])
def test_a_json_document_is_not_taken_for_lines(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.json").write_bytes(data)
    with pytest.raises(InputError, match="is a single JSON document"):
        rows_of(tmp_path / "in.json")


def test_lines_may_be_called_json(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_bytes(b'{"a": 1}\n{"a": 2}\n')
    assert data_of(tmp_path / "in.json") == [b'{"a": 1}', b'{"a": 2}']


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("in.csv", b"a,b\n", r"in\.csv: \.csv is not read; what is read: JSON Lines"),
        ("in.csv.gz", b"\x1f\x8b\x08\x00", r"\.csv inside gzip is not read; unpack it"),
        ("in.parquet.zst", b"\x28\xb5\x2f\xfd", r"\.parquet inside zstd is not read"),
        ("in.jsonl", "\ufeff{}".encode("utf-16-le"), "is UTF-16, and JSON Lines are UTF-8"),
        ("in.gz", b"{}\n", r"begins with b'\{\}\\n', so it is not gzip as its name says"),
        ("in.jsonl.zst", b"", "is empty, so it is not zstd as its name says"),
        ("in.parquet", b"PAR", "so it is not parquet as its name says"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_when_opened(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said):
        open_source(str(tmp_path / name))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl cannot be read: No such file"):
        open_source(str(tmp_path / "gone.jsonl"))


def test_a_file_that_goes_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    source = open_source(str(path))
    path.unlink()
    with pytest.raises(InputError, match=r"in\.jsonl cannot be read: No such file"):
        list(source.rows())


class Breaking(io.RawIOBase):
    """A disk that fails after its first bytes."""

    def __init__(self, *blocks: bytes) -> None:
        self.blocks = list(blocks)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self.blocks:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        block = self.blocks.pop(0)
        buffer[: len(block)] = block
        return len(block)


def test_a_file_that_cannot_be_read_on_gives_its_whole_lines_and_says_after_which() -> None:
    stream = cast(BinaryIO, io.BufferedReader(Breaking(b"1\n2\n", b"\n3\n4")))
    rows: list[bytes] = []
    with pytest.raises(InputError, match=r"input in\.jsonl cannot be read after line 4: Input/output error"):
        rows.extend(row.data for row in lines(stream, 0, "in.jsonl"))
    assert rows == [b"1", b"2", b"3"]
