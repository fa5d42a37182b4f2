"""Lines as Parquet: every value can be had back, whatever the lines are."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.batch.store import parquet
from lifecycle.batch.store.disk import Sink
from tests.batch.simulated_disk import SimulatedDisk
from tests.effort import TIMES

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]) | TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(st.sampled_from(["id", "x", "y"]) | TEXT, VALUES, max_size=4), max_size=6)


def part(lines: Sequence[bytes], before: bytes | None = None) -> bytes:
    file = SimulatedDisk().open(Path("/part"), create=True)
    sink = Sink(file)
    parquet.write(lambda: lines, sink, None if before is None else io.BytesIO(before))
    sink.finish()
    return file.read(1 << 30, 0)


def table(lines: Sequence[bytes]) -> Any:
    return pyarrow.parquet.read_table(io.BytesIO(part(lines)))


def rows(found: Any) -> list[dict[str, Any]]:
    """The rows, with texts of JSON as what they stand for."""
    is_json = {field.name for field in found.schema if field.metadata and field.metadata.get(b"stoker") == b"json"}
    return [
        {name: json.loads(value) if name in is_json and value is not None else value for name, value in row.items()}
        for row in found.to_pylist()
    ]


def without_nulls(value: Any) -> Any:
    """A column has each field for each row, so that null and missing are one."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


@given(records=RECORDS)
@settings(max_examples=100 * TIMES, deadline=None)
def test_every_value_of_any_records_can_be_had_back(records: list[dict[str, Any]]) -> None:
    found = rows(table([line(record) for record in records]))
    assert without_nulls(found) == without_nulls(records)


@pytest.mark.parametrize(
    "values",
    [
        ["a", {"b": 1}], [1, "a"], [True, 1], [[1], {"a": 1}], [[1], ["a"]], [{"a": 1}, {"a": "x"}], [{}], [{"a": {}}],
        [[{}]], [2**70], [2**60 + 1, 0.5],
    ],
)  # fmt: skip
def test_a_column_without_a_common_type_is_json_in_texts(values: list[Any]) -> None:
    found = table([line({"id": 1, "x": value}) for value in values])
    assert found.schema.field("x").type == pyarrow.string()
    assert [json.loads(text) for text in found["x"].to_pylist()] == values
    assert found.schema.field("id").type == pyarrow.int64()


def test_types_are_found_over_all_lines_not_the_first_ones() -> None:
    many: list[dict[str, Any]] = [{"x": None, "y": [], "z": {"a": 1}, "n": 1}] * (2 * parquet.ROWS)
    found = table([line(record) for record in [*many, {"x": "t", "y": [{"k": "v"}], "z": {"b": 2.5}, "n": 0.5}]])
    assert [str(field.type) for field in found.schema] == [
        "string", "list<element: struct<k: string>>", "struct<a: int64, b: double>", "double"
    ]  # fmt: skip
    assert found["z"].to_pylist()[0] == {"a": 1, "b": None}
    assert found.num_rows == 2 * parquet.ROWS + 1


def test_a_conflict_in_the_last_of_many_lines_turns_the_whole_column_into_texts() -> None:
    lines = [line({"x": {"a": 1}})] * (2 * parquet.ROWS) + [line({"x": "text"})]
    found = table(lines)
    assert json.loads(found["x"][0].as_py()) == {"a": 1}
    assert json.loads(found["x"][2 * parquet.ROWS].as_py()) == "text"


@given(first=RECORDS, second=RECORDS)
@settings(max_examples=50 * TIMES, deadline=None)
def test_a_part_has_the_columns_of_the_one_before_it_and_loses_nothing_by_that(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    before = part([line(record) for record in first])
    found = pyarrow.parquet.read_table(io.BytesIO(part([line(record) for record in second], before)))
    names = pyarrow.parquet.read_schema(io.BytesIO(before)).names
    assert found.schema.names[: len(names)] == names
    assert without_nulls(rows(found)) == without_nulls(second)


def test_parts_with_and_without_a_value_are_one_table_to_readers(tmp_path: Path) -> None:
    lines = [
        line({"id": 1, "why": None, "said": [{"text": "a", "thought": None}]}),
        line({"id": 2, "why": "x", "said": [{"text": "a", "thought": "b"}]}),
        line({"id": 3, "why": {"code": 1}}),
    ]
    before = None
    for number, each in enumerate(lines):
        before = part([each], before)
        (tmp_path / f"part-{number}.parquet").write_bytes(before)
    assert pyarrow.parquet.read_table(tmp_path).to_pylist() == [
        {"id": 1, "why": None, "said": [{"text": "a", "thought": None}]},
        {"id": 2, "why": "x", "said": [{"text": "a", "thought": "b"}]},
        {"id": 3, "why": '{"code":1}', "said": None},
    ]


def test_long_lines_are_taken_a_few_at_a_time() -> None:
    found = table([line({"text": "x" * parquet.BYTES})] * 3)
    assert [len(text) for text in found["text"].to_pylist()] == [parquet.BYTES] * 3


def test_what_is_no_object_is_kept_as_the_text_it_is() -> None:
    found = table([b"[1, 2]\n", b"not JSON\n", b'{"id": 1}\n'])
    assert found.to_pylist() == [
        {"line": "[1, 2]", "id": None}, {"line": "not JSON", "id": None}, {"line": None, "id": 1}
    ]  # fmt: skip


def test_rows_that_are_not_wanted_go_and_the_others_stay_in_order() -> None:
    whole = part([line({"id": number, "x": {"a": [number]}}) for number in range(5)])
    out = SimulatedDisk().open(Path("/out"), create=True)
    sink = Sink(out)
    parquet.keep(io.BytesIO(whole), [True, False, True, False, True], sink)
    sink.finish()
    found = pyarrow.parquet.read_table(io.BytesIO(out.read(1 << 20, 0)))
    assert found.to_pylist() == [{"id": number, "x": {"a": [number]}} for number in (0, 2, 4)]
    with pytest.raises(ValueError, match="5 rows, not 2"):
        parquet.keep(io.BytesIO(whole), [True, False], Sink(out))
