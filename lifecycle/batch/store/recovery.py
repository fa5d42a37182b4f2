"""From whatever a run left on the disk to a state in which each finished record has exactly its one line.

The journal commits, files follow: what lies where it should not is moved, cut or removed as the journal says.

- Before the last MARK everything is known to be on the disk: only sizes are looked at, and the last line.
- After it, each line is compared with its CRC-32. One that is torn or missing (power cut) is cut off with the lines
  behind it in its file, and their records are not finished any more.
- What is kept of these, and the journal, is written once more before it is synced: after a failed `fsync` the system
  takes pages for clean that never reached the disk, so that a second one alone would say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from zlib import crc32

from lifecycle.batch.store import entries, journal
from lifecycle.batch.store.disk import Disk, File
from lifecycle.batch.store.entries import DONE, MARK, NO_LINE, PART, SEALED, Entry
from lifecycle.batch.store.failures import damaged
from lifecycle.batch.store.history import Contradiction, History, Part
from lifecycle.batch.store.journal import Damaged, Journal, Reading
from lifecycle.batch.store.layout import Layout
from lifecycle.errors import OutputError

BLOCK = 1 << 20


@dataclass
class Recovered:
    history: History
    journal: Journal
    files: dict[int, File]
    """Those of the parts that are not whole."""


def recover(disk: Disk, layout: Layout) -> Recovered:
    """Raises `OutputError` if the files are not what a run can have left, and `OSError`."""
    path = layout.state / journal.NAME
    file = disk.open(path)
    tail = _Tail(disk, layout)
    try:
        try:
            reading = journal.read(file)
            tail.take(reading)
        except (Damaged, Contradiction) as error:
            raise damaged(layout.path, f"its journal {path} is damaged: {error}", layout.state) from None
        history = reading.history
        _check_whole_parts(disk, layout, history)
        tail.save(history)
        written = _save_journal(disk, layout, file, reading, tail.kept)
        history.clean = False
        settle(disk, layout, history)
    except BaseException:
        for each in (file, *tail.files.values()):
            each.close()
        raise
    return Recovered(history, written, tail.files)


class _Tail:
    """Compares the lines of the parts that are not whole with the journal."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self.files: dict[int, File] = {}
        """Of the parts that are not whole."""
        self.kept: list[bytes] = []
        """Those entries behind the last mark that hold, without marks."""
        self.holds = True
        """All of them do."""
        self._trusted: dict[int, int] = {}
        """Bytes of a part's lines that need no comparison."""

    def take(self, reading: Reading) -> None:
        """Add to the history what holds of the tail. Raises `OutputError`, `Contradiction`, `OSError`."""
        history = reading.history
        self.holds = not reading.torn
        found = [entry for raw in reading.tail if (entry := entries.parse(raw)) is not None]
        whole = {entry.number for entry in found if entry.kind == SEALED}
        for part in history.open_parts:
            if part.number not in whole:
                self._open(part, history.generation)
        for raw, entry in zip(reading.tail, found, strict=True):
            if entry.kind == DONE and not self._is_there(history, entry):
                self.holds = False
                continue
            history.take(entry)
            if entry.kind == PART:
                self._open(history.parts[entry.number], history.generation)
            if entry.kind != MARK:
                self.kept.append(raw)
        for part in history.open_parts:
            size = self.files[part.number].size()
            if history.clean and self.holds and size != part.size:
                raise self._changed(part, history.generation, size)

    def _open(self, part: Part, generation: int) -> None:
        place = _place(self._disk, self._layout, part.number, generation)
        if part.size and self._disk.kind(place) == "nothing":
            raise damaged(self._layout.path, f"{place.name} is missing", self._layout.state)
        self.files[part.number] = file = self._disk.open(place, create=True)
        self._trusted[part.number] = part.size
        size = file.size()
        last = part.last
        if size < part.size or (last and not _has_line(file, part.size - last.length, last)):
            raise self._changed(part, generation, size)

    def _changed(self, part: Part, generation: int, size: int) -> OutputError:
        name = self._layout.lines(part.number, generation).name
        what = f"{size} bytes, not {part.size}" if size != part.size else "its last line is another"
        return damaged(self._layout.path, f"{name} is not as the last run left it ({what})", self._layout.state)

    def _is_there(self, history: History, entry: Entry) -> bool:
        """Whether a finished record's line stands behind those of its part that hold."""
        if history.index.state(entry.number) or not history.parts:
            return False
        if entry.flags & NO_LINE:
            return True
        part = history.parts[next(reversed(history.parts))]
        file = self.files.get(part.number)
        return file is not None and _has_line(file, part.size, entry)

    def save(self, history: History) -> None:
        """Cut off what is no line, and bring the rest onto the disk, with the names of the files."""
        for number, file in self.files.items():
            size = history.parts[number].size
            if file.size() > size:
                file.truncate(size)
            for offset in range(self._trusted[number], size, BLOCK):
                file.write(file.read(min(BLOCK, size - offset), offset), offset)
            file.fsync()
        self._disk.fsync_folder(self._layout.folder)


def _has_line(file: File, offset: int, entry: Entry) -> bool:
    line = file.read(entry.length, offset)
    return len(line) == entry.length and crc32(line) == entry.crc


def _place(disk: Disk, layout: Layout, part: int, generation: int) -> Path:
    """Where the lines of a part that is not whole lie: one file may still be on its way to its name."""
    made = layout.made(part, generation)
    if layout.part_size is None and disk.kind(made) == "file":
        return made
    return layout.lines(part, generation)


def _check_whole_parts(disk: Disk, layout: Layout, history: History) -> None:
    """Raise `OutputError` if a part has changed, is missing, or is none that a run has written."""
    if layout.part_size is None:
        return
    names = set(disk.names(layout.folder))
    known = set()
    for part in history.parts.values():
        if part.sealed is None:
            continue
        final = layout.final(part.number)
        known.add(final.name)
        if part.lines:
            made = layout.made(part.number, history.generation)
            size = disk.size(made if made.name in names else final)
            if size != part.sealed:
                found = "is missing" if size is None else f"has {size} bytes, not the {part.sealed} that were written"
                raise damaged(layout.path, f"{final.name} {found}", layout.state)
    foreign = sorted(name for name in names - known if layout.is_part(name))
    if foreign:
        raise damaged(layout.path, f"{foreign[0]} was not written by this job", layout.state)


def _save_journal(disk: Disk, layout: Layout, file: File, reading: Reading, kept: list[bytes]) -> Journal:
    """Put a new journal, with a mark, in the place of the one that was read: what it has behind what its last mark
    tells of, be it that mark itself, may never have reached the disk."""
    flags = entries.COMPLETE if reading.history.complete else 0
    written = journal.replace(disk, layout.state, chain(journal.blocks(file, reading.count), kept), flags)
    file.close()
    return written


def settle(disk: Disk, layout: Layout, history: History) -> None:
    """Give files the names that the journal has committed, and remove what it knows nothing of. Raises `OSError`."""
    moves: dict[str, Path] = {}
    keeps: set[str] = set()
    emptied: set[str] = set()
    for part in history.parts.values():
        made, final = layout.made(part.number, history.generation), layout.final(part.number)
        if part.sealed is None and layout.part_size is not None:
            keeps.add(layout.lines(part.number, history.generation).name)
        elif part.sealed is None or part.lines:
            moves[made.name] = final
        else:
            emptied.add(final.name)
    names = disk.names(layout.folder)
    moved = [name for name in names if name in moves]
    gone = [name for name in names if layout.is_hidden(name) and name not in moves and name not in keeps]
    gone += [name for name in names if name in emptied]
    for name in moved:
        disk.rename(layout.folder / name, moves[name])
    for name in gone:
        disk.unlink(layout.folder / name)
    if moved or gone:
        disk.fsync_folder(layout.folder)
