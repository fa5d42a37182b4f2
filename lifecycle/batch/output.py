"""The output file: one line for each line of input, appended whole, mended when torn, written by one run at a time.

Each line is one `write`, so it survives the death of the process at once. `fsync` follows every `SYNC_INTERVAL`
seconds and at the end, so a power cut costs at most that much. A line that was torn (power cut, full disk) is cut off
on the next run, and its record is sent again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lifecycle.errors import OutputError

SYNC_INTERVAL = 5.0
"""Seconds between two `fsync`s while lines are being written."""
BLOCK = 1 << 20


class Output:
    """An output file, locked for this run. Raises `OutputError` if it cannot be written or another run has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except IsADirectoryError:
            raise OutputError(f"output {path} is a folder; name a file in it") from None
        except OSError as error:
            raise OutputError(f"output {path} cannot be written: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OutputError(f"output {path} is not a regular file, so no run could go on with it; name a file")
            self._lock()
            self._torn_at = self._end_of_whole_lines()
        except BaseException:
            os.close(self._fd)
            raise
        self._synced_at = time.monotonic()
        self._dirty = False

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"output {self.path} is being written by {_holder(self._fd)}; wait for it, or name another output"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise OutputError(f"output {self.path} cannot be locked: {error.strerror}") from None

    @property
    def torn(self) -> bytes:
        """The beginning of what follows the last whole line: a line that was cut off, or something that is not ours."""
        return os.pread(self._fd, BLOCK, self._torn_at)

    @property
    def has_lines(self) -> bool:
        """Whether there is a whole line."""
        return self._torn_at > 0

    def mend(self) -> int:
        """Cut off what follows the last whole line. Bytes cut."""
        size = os.fstat(self._fd).st_size
        if size > self._torn_at:
            self._truncate(self._torn_at)
        return size - self._torn_at

    def _end_of_whole_lines(self) -> int:
        size = os.fstat(self._fd).st_size
        if size == 0 or os.pread(self._fd, 1, size - 1) == b"\n":
            return size
        end = size
        while end > 0:
            begin = max(0, end - BLOCK)
            newline = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        return end

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise OutputError(f"output {self.path} cannot be mended: {error.strerror}") from None

    def finished(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(line number, line) of every line that is there. Raises `OutputError` for one that is not JSON."""
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    found = msgspec.json.decode(line)
                except msgspec.MsgspecError:
                    found = None
                if not isinstance(found, dict):
                    raise OutputError(f"output {self.path}, line {number} was not written by Stoker; move it away")
                yield number, found

    def keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Keep only the lines that are wanted, in a file beside it that then takes its place: whole or not at all."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # as with the file itself, where there are no locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(fd, "wb", closefd=False) as out:
                for _, line in self.finished():
                    if wanted(line):
                        out.write(msgspec.json.encode(line) + b"\n")
            os.fsync(fd)
            beside.replace(self.path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise OutputError(f"output {self.path} cannot be rewritten: {error.strerror}") from None
        os.close(self._fd)
        self._fd = fd
        self._torn_at = os.fstat(fd).st_size

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line. Raises `OutputError` if it could not be written whole; then nothing of it is left."""
        data = msgspec.json.encode(line) + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            raise OutputError(
                f"output {self.path} cannot be written any more: {error.strerror}; everything finished before is safe, "
                "run the same command again when there is room"
            ) from None
        self._torn_at = size + len(data)
        self._dirty = True
        if time.monotonic() - self._synced_at >= SYNC_INTERVAL:
            self.sync()

    def sync(self) -> None:
        """Bring what was written onto the disk."""
        if self._dirty:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            self._dirty = False
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync, unlock, close. Idempotent."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> str:
    """Who holds the lock on an open file, from /proc/locks (proc(5)): `1: FLOCK ADVISORY WRITE 42 08:02:1234 0 EOF`."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as table:
        for row in table:
            words = row.split()
            if "FLOCK" in words and words[5].rpartition(":")[2] == inode:
                return f"another run (pid {words[4]})"
    return "another run"
