"""Inputs of jobs of any kind that are damaged, or are none: rows before the damage, then a named error; and whatever a
row is, it becomes a request or a line that says why not."""

from __future__ import annotations

import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.batch.records import Defaults, Malformed, Request, answered, malformed, parse, refused
from lifecycle.batch.sources import Row, open_source
from lifecycle.errors import InputError
from tests.fuzz.damage import HARD, NASTY, edits

RECORDS: list[dict[str, Any]] = [{"prompt": f"Say {number}" * 9, "id": number} for number in range(40)]
PLAIN = b"".join(msgspec.json.encode(record) + b"\n" for record in RECORDS)


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), out, row_group_size=10)
    return out.getvalue()


FILES = {
    "in.jsonl": PLAIN, "in.json": PLAIN, "in.jsonl.gz": gzip.compress(PLAIN, mtime=0),
    "in.jsonl.zst": zstd.compress(PLAIN), "in.parquet": parquet(), "two.gz": 2 * gzip.compress(PLAIN, mtime=0),
}  # fmt: skip
NAMES = st.sampled_from(sorted(FILES))


def rows(name: str, data: bytes) -> tuple[list[Row], str]:
    """What an input gives, and the words of the error that ends it."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            source = open_source(str(path))
            source.total()
            found.extend(source.rows())
            source.close()
        except InputError as error:
            assert name in str(error), error  # noqa: PT017 - there may be none
            return found, str(error)
    return found, ""


@HARD
@given(st.data(), NAMES)
def test_a_damaged_input_gives_numbered_rows_and_then_a_named_error(data: st.DataObject, name: str) -> None:
    damaged, sound = data.draw(edits(FILES[name]))
    found, said = rows(name, damaged)
    assert [row.number for row in found] == list(range(len(found)))
    assert said or found or not damaged.strip() or name.startswith("in.json")
    if name == "in.jsonl":
        whole = PLAIN[:sound].count(b"\n")
        assert [row.data for row in found[:whole]] == PLAIN.splitlines()[:whole], "what is whole before is given"


@HARD
@given(st.data(), st.sampled_from(["in.jsonl.gz", "in.jsonl.zst"]))
def test_a_packed_input_that_is_cut_gives_no_row_that_is_not_of_it(data: st.DataObject, name: str) -> None:
    cut = data.draw(st.integers(5, len(FILES[name]) - 1))
    found, said = rows(name, FILES[name][:cut])
    assert said
    assert [row.data for row in found] == PLAIN.splitlines()[: len(found)]


@HARD
@given(st.lists(NASTY | st.binary(max_size=60), max_size=5).map(b"".join), NAMES, st.booleans())
def test_any_bytes_under_any_name_are_rows_or_a_named_error(data: bytes, name: str, headed: bool) -> None:
    head = FILES[name][:4] if headed else b""
    found, _ = rows(name, head + data)
    for row in found:
        assert isinstance(parse(row.data, row.number, Defaults(), row.where), Request | Malformed)


DEEP = st.integers(1, 1100).map(lambda depth: b'{"prompt":"x","deep":' + b"[" * depth + b"]" * depth + b"}")
PARAMS = st.integers(1, 1100).map(
    lambda depth: b'{"custom_id":"a","url":"/v1/x","body":{"x":' + b"[" * depth + b"]" * depth + b"}}"
)


def at_depth(frames: int, call: Any) -> Any:
    """Call something from so deep on the stack, as code of the event loop is called."""
    return call() if frames == 0 else at_depth(frames - 1, call)


@HARD
@given(st.binary(max_size=60) | NASTY | DEEP | PARAMS, st.integers(0, 150))
@example(b'{"prompt":"x","deep":' + b"[" * 850 + b"]" * 850 + b"}", 150)
@example(b'{"custom_id":"a","url":"/v1/x","body":{"x":' + b"[" * 850 + b"]" * 850 + b"}}", 150)
def test_what_was_taken_for_a_request_can_be_sent_and_its_line_be_written_from_wherever(
    line: bytes, frames: int
) -> None:
    found = parse(line, 1, Defaults(model="m"))
    answer = {"choices": [{"text": "t", "finish_reason": "stop"}]}
    if isinstance(found, Malformed):
        assert at_depth(frames, lambda: msgspec.json.encode(malformed(found)))
        return
    assert at_depth(frames, lambda: msgspec.json.encode(found.payload))
    assert at_depth(frames, lambda: msgspec.json.encode(answered(found, answer)))
    assert at_depth(frames, lambda: msgspec.json.encode(refused(found, "no", body="[" * 2000)))


@pytest.mark.parametrize("name", sorted(FILES))
def test_without_damage_all_rows_are_given(name: str) -> None:
    found, said = rows(name, FILES[name])
    assert said == ""
    times = 2 if name == "two.gz" else 1
    assert [msgspec.json.decode(row.data) for row in found] == RECORDS * times
