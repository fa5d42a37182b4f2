"""Parquet as rows, a few at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.batch.sources.row import Row
from lifecycle.batch.sources.values import encode
from lifecycle.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 8 << 20
"""A batch of rows is aimed at this size, by what the file's footer says of their mean."""
BATCH_ROWS = 1024
PAGES = 1 << 20
"""Bytes of a column that are read at once: without it a whole column of a row group is."""


def count(path: Path, name: str) -> int:
    """Rows, from the footer. Raises `InputError` if this is no whole Parquet file, or one without usable columns."""
    pq = _pyarrow(name)
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            rows = int(file.metadata.num_rows)
    except Exception as error:
        raise InputError(f"input {name} is not a whole Parquet file: {_reason(error)}; get it again") from None
    twice = sorted({each for each in columns if columns.count(each) > 1})
    if twice:
        raise InputError(f"input {name} has the column {twice[0]!r} twice; a record's fields have each their own name")
    if not columns:
        raise InputError(f"input {name} has no columns, so its {rows} rows hold no prompt")
    return rows


def table(path: Path, number: int, name: str, label: str = "") -> Generator[Row, None, int]:
    """Every row, numbered from `number`; returns the number after the last.

    Memory is bounded by a batch and a dictionary of the file, whatever its size and that of its row groups. Raises
    `InputError` where the file is damaged, after every batch of rows before that.
    """
    pq = _pyarrow(name)
    unit = f"{label}row"
    position = 0
    try:
        with pq.ParquetFile(path, buffer_size=PAGES, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                size = _batch_rows(file.metadata.row_group(group))
                for batch in file.iter_batches(batch_size=size, row_groups=[group], use_threads=False):
                    for record in _records(batch):
                        data = encode(record)
                        position += 1
                        yield Row(number, data, unit, position)
                        number += 1
    except Exception as error:
        # pyarrow raises its own classes, OSError, ValueError, OverflowError and UnicodeDecodeError for damaged values.
        raise InputError(f"input {name} cannot be read after row {position}: {_reason(error)}") from None
    return number


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"input {name} is Parquet, which needs: pip install 'stoker[data]'") from None
    return pyarrow.parquet


def _batch_rows(group: Any) -> int:
    mean = group.total_byte_size / max(1, group.num_rows)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1, mean))))


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts; several times as fast as `RecordBatch.to_pylist`."""
    names = batch.schema.names
    columns = [_exact(column).to_pylist() for column in batch.columns]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _exact(column: pa.Array) -> pa.Array:
    """With nanoseconds as texts and counts: Python's own types end at microseconds, and pyarrow's answer would depend
    on whether pandas is installed."""
    wanted = _plain(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _plain(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if getattr(kind, "unit", None) == "ns":
        return pa.int64() if types.is_duration(kind) else pa.string()
    return kind


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
