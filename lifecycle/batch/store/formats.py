"""Lines into a part of each format, and back."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

from lifecycle.batch.store import parquet
from lifecycle.batch.store.disk import File, Sink, reader
from lifecycle.errors import OutputError

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None  # type: ignore[assignment,unused-ignore]

DAMAGES: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, *((zstd.ZstdError,) if zstd else ()))
"""What the decompressors raise for data that are cut off or damaged."""
FORMATS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")


def check_installed(format: str) -> None:
    """Raise `OutputError` if the format needs something that is not installed."""
    if (format == "parquet" and not parquet.is_installed()) or (format == "jsonl.zst" and zstd is None):
        raise OutputError(f"output format {format} needs: pip install 'stoker[data]'")


def convert(format: str, lines: File, out: File, before: File | None = None) -> int:
    """Write lines as a part. Bytes of the part. `before` is the part before it. Raises the disk's `OSError`."""
    sink = Sink(out)
    try:
        if format == "parquet":
            parquet.write(lambda: reader(lines), sink, reader(before) if before else None)
        else:
            _write(format, reader(lines), sink)
        return sink.finish()
    except Exception:
        if sink.failure is not None:
            raise sink.failure from None
        raise


def keep(format: str, part: File, wanted: Iterable[bool], out: File) -> int:
    """Write those rows of a part that are wanted. Bytes of the new part.

    Raises `OSError`, and `ValueError` if the part has not as many rows as there are answers in `wanted`, or none can be
    read from it.
    """
    sink = Sink(out)
    try:
        if format == "parquet":
            parquet.keep(reader(part), list(wanted), sink)
        else:
            pairs = zip(_lines(format, part), wanted, strict=True)
            _write(format, (line for line, is_wanted in pairs if is_wanted), sink)
        return sink.finish()
    except DAMAGES as error:
        raise ValueError(str(error)) from error
    except Exception:
        if sink.failure is not None:
            raise sink.failure from None
        raise


def _write(format: str, lines: Iterable[bytes], sink: Sink) -> None:
    with _packer(format, sink) as packed:
        packed.writelines(lines)


def _packer(format: str, sink: Sink) -> Any:
    if format == "jsonl.gz":
        return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=cast(Any, sink), mtime=0)
    return zstd.ZstdFile(cast(Any, sink), "wb") if format == "jsonl.zst" else nullcontext(sink)


def _lines(format: str, part: File) -> Iterable[bytes]:
    stream = reader(part)
    if format == "jsonl.gz":
        return gzip.GzipFile(fileobj=stream)
    return cast(Iterable[bytes], zstd.ZstdFile(stream)) if format == "jsonl.zst" else stream
