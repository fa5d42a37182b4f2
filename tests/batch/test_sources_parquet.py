"""Parquet rows are JSON records; a damaged file gives the rows before the damage and then an error."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.batch.sources import open_source
from lifecycle.errors import InputError


def records(path: Path) -> list[Any]:
    return [json.loads(row.data) for row in open_source(str(path)).rows()]


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "prompt": st.text(max_size=20) | st.none(),
            "messages": st.lists(st.fixed_dictionaries({"role": st.text(max_size=3), "content": st.text(max_size=9)})),
        }
    ),
    min_size=1,
)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("prompt", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ]
)


@given(rows=ROWS, group=st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_every_row_is_a_record_however_the_file_is_divided(tmp_path: Path, rows: list[Any], group: int) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=group)
    source = open_source(str(path))
    given = list(source.rows())
    assert [json.loads(row.data) for row in given] == rows
    assert [(row.number, row.where) for row in given] == [(at, f"row {at + 1}") for at in range(len(rows))]
    assert source.total() == len(rows)


NANO = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("values", "kind", "json_value"),
    [
        ([datetime(2024, 2, 29, 1, 2, 3, 4)], pa.timestamp("us"), "2024-02-29T01:02:03.000004"),
        ([datetime(2024, 2, 29, tzinfo=UTC)], pa.timestamp("ms", "UTC"), "2024-02-29T00:00:00Z"),
        ([NANO], pa.timestamp("ns"), "2023-11-14 22:13:20.123456789"),
        ([NANO], pa.timestamp("ns", "UTC"), "2023-11-14 22:13:20.123456789Z"),
        ([[NANO]], pa.list_(pa.timestamp("ns")), ["2023-11-14 22:13:20.123456789"]),
        ([{"at": NANO}], pa.struct([("at", pa.timestamp("ns"))]), {"at": "2023-11-14 22:13:20.123456789"}),
        ([date(2024, 2, 29)], pa.date32(), "2024-02-29"),
        ([time(1, 2, 3)], pa.time64("us"), "01:02:03"),
        ([1], pa.time64("ns"), "00:00:00.000000001"),
        ([timedelta(seconds=90)], pa.duration("us"), "PT90S"),
        ([90], pa.duration("ns"), 90),
        ([b"\x00\xff"], pa.binary(), "AP8="),
        ([Decimal("0.10")], pa.decimal128(10, 2), "0.10"),
        ([float("nan")], pa.float64(), None),
        ([1.5], pa.float16(), 1.5),
        ([2**64 - 1], pa.uint64(), 2**64 - 1),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int64()), [["k", 1]]),
        ([[1, 2]], pa.list_(pa.int8(), 2), [1, 2]),
        ([True], pa.bool_(), True),
        ([None], pa.null(), None),
    ],
)
def test_values_that_json_does_not_know_are_written_as_documented(
    tmp_path: Path, values: list[Any], kind: Any, json_value: Any
) -> None:
    pq.write_table(pa.table({"value": pa.array(values, kind)}), tmp_path / "in.parquet", store_schema=True)
    assert records(tmp_path / "in.parquet") == [{"value": json_value}]


def test_memory_is_that_of_a_batch_and_not_of_a_row_group(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    with pq.ParquetWriter(path, pa.schema([("prompt", pa.string())]), compression="zstd", use_dictionary=False) as file:
        file.write_table(
            pa.table({"prompt": [f"{number:06}" * 2000 for number in range(8000)]}), row_group_size=8000
        )  # 96 MB
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert sum(1 for _ in open_source(str(path)).rows()) == 8000
        assert pool.max_memory() < 48 << 20
    finally:
        pa.set_memory_pool(before)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    table = pa.table({"prompt": [f"prompt {number}" for number in range(1000)]})
    pq.write_table(table, path, row_group_size=100, compression="none", write_page_checksum=True)
    return path


def test_a_file_that_is_cut_off_is_refused_when_opened(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"in\.parquet is not a whole Parquet file: .*; get it again"):
        open_source(str(whole))


def test_a_damaged_row_group_ends_the_rows_with_its_place(whole: Path) -> None:
    start = pq.read_metadata(whole).row_group(6).column(0).data_page_offset
    data = bytearray(whole.read_bytes())
    data[start : start + 200] = b"\xff" * 200
    whole.write_bytes(data)
    rows: list[int] = []
    with pytest.raises(InputError, match=r"in\.parquet cannot be read after row 600: "):
        rows.extend(row.number for row in open_source(str(whole)).rows())
    assert rows == list(range(600))


def test_columns_must_make_a_record(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(InputError, match="has the column 'a' twice"):
        open_source(str(tmp_path / "twice.parquet"))
    pq.write_table(pa.table({"a": [1]}).select([]), tmp_path / "none.parquet")
    with pytest.raises(InputError, match="has no columns"):
        open_source(str(tmp_path / "none.parquet"))


def test_no_rows_are_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "in.parquet")
    assert records(tmp_path / "in.parquet") == []
    assert open_source(str(tmp_path / "in.parquet")).total() == 0
