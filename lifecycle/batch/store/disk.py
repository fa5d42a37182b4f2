"""Everything that the store asks of a disk, as two narrow protocols, and the real one.

The tests put a simulated disk here that can stop, fill up or lose power at every single operation.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

Kind = Literal["file", "folder", "other", "nothing"]


class File(Protocol):
    """An open file. Offsets are explicit, so that no two users of it share a position."""

    def write(self, data: ReadableBuffer, offset: int) -> None:
        """Write all of it, or raise `OSError`; then any part of it may be there."""

    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes; less only at the end of the file."""

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def fsync(self) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Every method raises `OSError` as the system does."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File: ...
    def resolve(self, path: Path) -> Path:
        """What a symbolic link leads to; any other path as it is."""

    def kind(self, path: Path) -> Kind: ...

    def size(self, path: Path) -> int | None:
        """Bytes of a file, or None if it is missing."""

    def names(self, folder: Path) -> list[str]: ...
    def mkdir(self, path: Path) -> None: ...
    def rename(self, old: Path, new: Path) -> None: ...
    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is missing is no error."""

    def fsync_folder(self, path: Path) -> None:
        """Bring the names in a folder onto the disk, if its file system can do that."""


class RealFile:
    """A file of the operating system."""

    def __init__(self, path: Path, *, create: bool, write: bool) -> None:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def write(self, data: ReadableBuffer, offset: int) -> None:
        # Not O_APPEND: Linux's pwrite ignores the offset then (pwrite(2), BUGS).
        written = os.pwrite(self._fd, data, offset)
        if written < len(memoryview(data)):
            rest = memoryview(data).cast("B")
            while written < len(rest):
                written += os.pwrite(self._fd, rest[written:], offset + written)

    def read(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size and (data := os.pread(self._fd, size - have, offset + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fsync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealDisk:
    """The operating system's file system."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        return RealFile(path, create=create, write=write)

    def resolve(self, path: Path) -> Path:
        return Path(os.path.realpath(path)) if path.is_symlink() else path

    def kind(self, path: Path) -> Kind:
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return "nothing"
        return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"

    def size(self, path: Path) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def fsync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        finally:
            os.close(fd)


UNSUPPORTED = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))
"""What fsync of a folder answers on file systems without it (fsync(2); some FUSE and SMB mounts): their renames are as
durable as they make them."""
BUFFER = 1 << 20


def reader(file: File, offset: int = 0) -> io.BufferedReader:
    """An open file as a buffered stream; the file stays open when the stream is closed."""
    return io.BufferedReader(_Source(file, offset), BUFFER)


class _Source(io.RawIOBase):
    def __init__(self, file: File, offset: int) -> None:
        self._file = file
        self._position = offset

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = (0, self._position, self._file.size())[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class Sink(io.RawIOBase):
    """An open file as a stream to write to from its beginning, a buffer at a time; `finish` writes the last.

    `failure` keeps the error of the disk, which libraries that write here may wrap into one of their own.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._buffer = bytearray()
        self._written = 0
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written + len(self._buffer)

    def write(self, data: ReadableBuffer, /) -> int:
        if self.failure is None:  # a library that closes its stream after a failure writes what it still has
            self._buffer += memoryview(data)
            if len(self._buffer) >= BUFFER:
                self._write()
        return memoryview(data).nbytes

    def begin_again(self) -> None:
        """Forget what was written."""
        self._buffer.clear()
        self._written = 0

    def finish(self) -> int:
        """Bytes written. Raises `OSError`."""
        self._write()
        self._file.truncate(self._written)
        return self._written

    def _write(self) -> None:
        try:
            self._file.write(self._buffer, self._written)
        except OSError as error:
            self.failure = error
            raise
        self._written += len(self._buffer)
        self._buffer = bytearray()
