"""JSON Lines as Parquet, whatever the lines are: a night's results must not fail at a type.

Each field of the lines is a column, in the order in which the fields are first seen. Its type is what Arrow infers over
all lines of the part: whole numbers and fractions together are doubles, objects are structs with the fields of all,
lists are lists; a field that a line lacks is null. A column for which there is no such type (a text here and an object
there, an object without fields, whole numbers beyond 64 bits) becomes texts, each the JSON of its value; its metadata
say `stoker: json`. So a value of each line can be had back.

Readers of many parts as one table take the columns of the first and cast the others. So a part begins with the columns
and types of the one before it, and what is null in all lines is a text, for Arrow casts nothing to null.

A line that is no object, or not JSON, becomes a text in the column `line`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from lifecycle.batch.store.disk import Sink
from lifecycle.decoding import decode

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, BYTES = 256, 4 << 20
"""Lines are made into columns so many at a time, which bounds for how long pyarrow keeps the interpreter's lock, and
keeps a column's texts under the 2 GiB that Arrow's plain strings can hold."""
GROUP_BYTES = 64 << 20
"""A row group is written when its columns take this much memory."""
JSON = {b"stoker": b"json"}
COMPRESSION = "zstd"
Record = Mapping[str, Any]
Types = dict[str, "pa.DataType | None"]
"""Each column's type; None: texts of JSON."""


class _Unfit(Exception):
    """A column cannot be of the type that was found for it."""

    def __init__(self, column: str) -> None:
        self.column = column


def is_installed() -> bool:
    return find_spec("pyarrow") is not None


def write(lines: Callable[[], Iterable[bytes]], sink: Sink, like: BinaryIO | None = None) -> None:
    """Write a Parquet file; `lines` is called for each pass. `like` is the part before. Raises the disk's `OSError`."""
    types = _types(_chunks(lines()), _types_of(like) if like else {})
    if not types:
        types["line"] = None  # without a column there would be no rows
    while True:
        sink.begin_again()
        try:
            return _write(types, _chunks(lines()), sink)
        except _Unfit as error:
            types[error.column] = None
        except Exception:
            # Parquet cannot hold what Arrow can: plainer with each turn, and texts at last.
            if sink.failure is not None or not (nested := _plainer(types)):
                raise
            types.update(dict.fromkeys(nested))


def keep(part: BinaryIO, wanted: list[bool], sink: Sink) -> None:
    """Write those rows of a Parquet file that are wanted. Raises `OSError`, and `ValueError` for another number of rows
    or what is no Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(part, pre_buffer=False) as file:
        if file.metadata.num_rows != len(wanted):
            raise ValueError(f"it has {file.metadata.num_rows} rows, not {len(wanted)}")
        row = 0
        with pq.ParquetWriter(sink, file.schema_arrow, compression=COMPRESSION) as out:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                mask = pa.array(wanted[row : row + table.num_rows], pa.bool_())
                row += table.num_rows
                out.write_table(table.filter(mask))


def _chunks(lines: Iterable[bytes]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    size = 0
    for line in lines:
        chunk.append(_record(line))
        size += len(line)
        if len(chunk) >= ROWS or size >= BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _record(line: bytes) -> Record:
    try:
        record = decode(line)
    except msgspec.MsgspecError:
        record = None
    return record if isinstance(record, dict) else {"line": line.removesuffix(b"\n").decode(errors="replace")}


def _types_of(part: BinaryIO) -> Types:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(part)
    except (pa.ArrowException, OSError):  # somebody has damaged it; no reason to lose the next one
        return {}
    return {
        field.name: None if (field.metadata or {}).get(b"stoker") == b"json" else field.type
        for field in schema
    }


def _types(chunks: Iterable[list[Record]], before: Types) -> Types:
    types = dict(before)
    for chunk in chunks:
        for column in dict.fromkeys(name for record in chunk for name in record):
            found = _inferred([record.get(column) for record in chunk])
            types[column] = _merged(types[column], found) if column in types else found
    return {
        column: _without_null(kind) if kind is not None and _is_storable(kind) else None
        for column, kind in types.items()
    }


def _inferred(values: list[Any]) -> pa.DataType | None:
    import pyarrow as pa

    try:
        return pa.infer_type(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _merged(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    import pyarrow as pa

    if one is None or other is None or one == other:
        return None if other is None else one
    try:
        schemas = [pa.schema([("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _is_storable(kind: pa.DataType) -> bool:
    """Parquet has no struct without fields."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_storable(field.type) for field in kind)
    return not pa.types.is_list(kind) or _is_storable(kind.value_type)


def _without_null(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_null(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_null(kind.value_type)))
    return pa.string() if pa.types.is_null(kind) else kind


def _plainer(types: Types) -> list[str]:
    import pyarrow as pa

    given = {column: kind for column, kind in types.items() if kind is not None}
    return [column for column, kind in given.items() if pa.types.is_nested(kind)] or list(given)


def _write(types: Types, chunks: Iterable[list[Record]], sink: Sink) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    schema = pa.schema([
        pa.field(column, text, metadata=JSON) if kind is None else pa.field(column, kind)
        for column, kind in types.items()
    ])  # fmt: skip
    waiting: list[pa.RecordBatch] = []
    size = 0
    with pq.ParquetWriter(sink, schema, compression=COMPRESSION) as out:
        for chunk in chunks:
            batch = _batch(types, schema, chunk)
            waiting.append(batch)
            size += batch.nbytes
            if size >= GROUP_BYTES:
                out.write_table(pa.Table.from_batches(waiting, schema), row_group_size=1 << 30)
                waiting, size = [], 0
        if waiting:
            out.write_table(pa.Table.from_batches(waiting, schema), row_group_size=1 << 30)


def _batch(types: Types, schema: pa.Schema, chunk: list[Record]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = []
    for column, kind in types.items():
        values = [record.get(column) for record in chunk]
        if kind is None:
            arrays.append(pa.array([None if value is None else _json(value) for value in values], pa.string()))
            continue
        try:
            arrays.append(pa.array(values, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise _Unfit(column) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
