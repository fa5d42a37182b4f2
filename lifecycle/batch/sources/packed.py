"""Files as buffered streams of bytes, gzip and zstd unpacked a step at a time.

`gzip.open` fills a whole buffer before it hands out any of it, and loses it when the data break off within. Here each
read is one step of the decompressor, so that every byte before the damage arrives.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from lifecycle.batch.sources.kinds import Kind
from lifecycle.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None  # type: ignore[assignment,unused-ignore]

BUFFER = 1 << 20
"""Bytes read at once: with 1 MiB the lines of a file come about twice as fast as with Python's default of 8 KiB."""
DAMAGES: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, *((zstd.ZstdError,) if zstd else ()))
"""What the decompressors raise for data that are cut off or damaged."""


def check_readable(kind: Kind, name: str) -> None:
    """Raise `InputError` if files of this kind need something that is not installed."""
    if kind == "zstd" and not zstd:
        raise InputError(f"input {name} is zstd, which needs: pip install 'stoker[data]'")


def open_lines(path: Path, kind: Kind) -> BinaryIO:
    """The unpacked bytes of a file. Raises `OSError`, for damaged data when they are read."""
    if kind == "lines":
        return path.open("rb", buffering=BUFFER)
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path.open("rb"), kind), BUFFER))


class _Unpacked(io.RawIOBase):
    """One step of the decompressor a read; damage is an `OSError` that says where."""

    def __init__(self, file: BinaryIO, kind: Kind) -> None:
        self._file = file
        self._kind = kind
        self._unpacked = cast(io.BufferedIOBase, gzip.GzipFile(fileobj=file) if kind == "gzip" else zstd.ZstdFile(file))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._unpacked.read1(len(view))
        except DAMAGES as error:
            place = f"near byte {self._file.tell()} of the file"
            if isinstance(error, EOFError):
                raise OSError(f"the {self._kind} data are cut off {place}; get the file again") from None
            raise OSError(f"the {self._kind} data are damaged {place} ({error}); get the file again") from None
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._unpacked.close()
            self._file.close()
        super().close()
