"""Packed files: the same rows as unpacked; cut off or damaged, every row before that point and then an error."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.batch.sources import Row, open_source
from lifecycle.errors import InputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LINES = [b'{"id": %d, "prompt": "%s"}' % (number, b"%x" % number**9 * 9) for number in range(3000)]
PLAIN = b"\n".join(LINES) + b"\n"
PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd.compress}
WHOLE = {kind: pack(PLAIN) for kind, pack in PACK.items()}


def given_before_error(path: Path) -> tuple[list[bytes], str | None]:
    rows: list[bytes] = []
    try:
        rows.extend(row.data for row in _rows(path))
    except InputError as error:
        return rows, str(error)
    return rows, None


def _rows(path: Path) -> Iterator[Row]:
    return open_source(str(path)).rows()


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("name", ["in.jsonl.{}", "in.{}", "in.jsonl", "in"])
def test_a_packed_file_has_the_rows_of_the_plain_one_whatever_its_name(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / name.format(kind)
    path.write_bytes(WHOLE[kind])
    assert given_before_error(path) == (LINES, None)


@pytest.mark.parametrize("kind", PACK)
def test_members_one_after_the_other_are_read_to_the_end(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"in.{kind}"
    path.write_bytes(b"".join(PACK[kind](PLAIN[at : at + 10_000]) for at in range(0, len(PLAIN), 10_000)))
    assert given_before_error(path) == (LINES, None)


def test_a_zstd_file_may_begin_with_a_frame_to_skip(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + WHOLE["zst"])  # as pzstd writes it
    assert given_before_error(path) == (LINES, None)


@pytest.mark.parametrize("kind", PACK)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_cut_off_anywhere_what_came_before_is_given_and_the_cut_is_told(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(4, len(WHOLE[kind]) - 1))
    path = tmp_path / f"in.{kind}"
    path.write_bytes(WHOLE[kind][:cut])
    rows, error = given_before_error(path)
    assert rows == LINES[: len(rows)]
    assert error is not None
    assert f"in.{kind} cannot be read after line {len(rows)}: the " in error
    assert f"data are cut off near byte {cut} of the file" in error
    step = zlib.decompressobj(31) if kind == "gz" else zstd.ZstdDecompressor()
    assert len(rows) == step.decompress(WHOLE[kind][:cut]).count(b"\n")


@pytest.mark.parametrize("kind", PACK)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_a_damaged_file_with_a_checksum_never_passes_for_a_whole_one(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    whole = WHOLE["gz"]
    if kind == "zst":
        whole = zstd.compress(PLAIN, options={zstd.CompressionParameter.checksum_flag: 1})
    at = data.draw(st.integers(10, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    path = tmp_path / f"in.{kind}"
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    rows, error = given_before_error(path)
    assert rows == LINES or error is not None


@pytest.mark.parametrize("kind", PACK)
def test_what_unpacks_to_a_thousand_times_its_size_is_unpacked_in_pieces(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"in.{kind}").write_bytes(PACK[kind]((b"x" * 4095 + b"\n") * 16_000))  # 64 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in _rows(tmp_path / f"in.{kind}")) == 16_000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
