"""The journal as a file: appended to, or replaced whole by a new one that is written beside and renamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import adler32

from lifecycle.batch.store import entries
from lifecycle.batch.store.disk import Disk, File
from lifecycle.batch.store.entries import MARK, SIZE
from lifecycle.batch.store.history import History

NAME, BESIDE = "journal", "journal.new"
BLOCK = SIZE * 16384


class Journal:
    """An open journal. Its methods raise `OSError`."""

    def __init__(self, file: File, count: int, adler: int) -> None:
        self.file = file
        self.count = count
        """Entries."""
        self.adler = adler
        """Adler-32 of them all."""

    def append(self, entry: bytes) -> None:
        """Add one entry, whole or not at all. Not synced."""
        offset = self.count * SIZE
        try:
            self.file.write(entry, offset)
        except OSError:
            with suppress(OSError):
                self.file.truncate(offset)
            raise
        self.count += 1
        self.adler = adler32(entry, self.adler)

    def mark(self, flags: int = 0) -> None:
        """Say that everything up to here is on the disk."""
        self.append(entries.mark(self.count, self.adler, flags))


@dataclass
class Reading:
    """What was found in a journal."""

    history: History
    """By the entries before the last mark, which need no further check."""
    count: int
    """How many these are."""
    adler: int
    tail: list[bytes]
    """The sound entries after them."""
    torn: bool
    """Something follows that is no entry."""


class Damaged(ValueError):
    """The journal is not as it was written."""


def read(file: File) -> Reading:
    """Read a journal. Raises `Damaged`, `OSError`."""
    size = file.size()
    marked = _last_mark(file, size // SIZE)
    adler = 1
    for block in blocks(file, marked.number):
        adler = adler32(block, adler)
    if adler != marked.check:
        raise Damaged("the entries before its last mark have changed")
    history = History()
    for block in blocks(file, marked.number):
        history.take_all(entries.columns(block))
    tail: list[bytes] = []
    for block in blocks(file, size // SIZE, marked.number):
        for start in range(0, len(block), SIZE):
            entry = block[start : start + SIZE]
            if entries.parse(entry) is None:
                return Reading(history, marked.number, adler, tail, True)
            tail.append(entry)
    return Reading(history, marked.number, adler, tail, size % SIZE != 0)


def blocks(file: File, count: int, first: int = 0) -> Iterator[bytes]:
    """The entries from `first` to before `count`, many at a time."""
    offset, end = first * SIZE, count * SIZE
    while offset < end:
        block = file.read(min(BLOCK, end - offset), offset)
        if not block:
            return
        yield block
        offset += len(block)


def _last_mark(file: File, count: int) -> entries.Entry:
    stop = count
    while stop > 0:
        start = max(0, stop - BLOCK // SIZE)
        block = file.read((stop - start) * SIZE, start * SIZE)
        kinds = block[0::SIZE]
        row = kinds.rfind(MARK)
        while row >= 0:
            entry = entries.parse(block[row * SIZE : (row + 1) * SIZE])
            if entry is not None and entry.number <= start + row:
                return entry
            row = kinds.rfind(MARK, 0, row)
        stop = start
    raise Damaged("it has no mark")


def replace(disk: Disk, folder: Path, kept: Iterable[bytes], flags: int = 0) -> Journal:
    """Write a new journal of these pieces, each one or more entries, and a mark; put it in the place of the old one.

    What the entries tell of must be on the disk. When this returns, the new journal is; before, the old one is."""
    beside = folder / BESIDE
    file = disk.open(beside, create=True)
    try:
        file.truncate(0)
        journal = Journal(file, 0, 1)
        for piece in kept:
            file.write(piece, journal.count * SIZE)
            journal.count += len(piece) // SIZE
            journal.adler = adler32(piece, journal.adler)
        journal.mark(flags)
        file.fsync()
        disk.rename(beside, folder / NAME)
        disk.fsync_folder(folder)
    except BaseException:
        file.close()
        with suppress(OSError):
            disk.unlink(beside)
        raise
    return journal
