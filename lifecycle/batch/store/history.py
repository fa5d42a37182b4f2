"""What a journal tells: which records are finished, and where their lines lie. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from lifecycle.batch.store.entries import (
    BEGIN,
    CLEAN,
    COMPLETE,
    DONE,
    ERROR,
    LAYOUT,
    MARK,
    NO_LINE,
    PART,
    SEALED,
    Columns,
    Entry,
)  # fmt: skip
from lifecycle.batch.store.index import Index


class Contradiction(ValueError):
    """Entries that cannot follow each other."""


@dataclass
class Part:
    """Some of the lines: those of one file."""

    number: int
    size: int = 0
    """Bytes of its lines."""
    lines: int = 0
    last: Entry | None = None
    """Of its last line."""
    sealed: int | None = None
    """Bytes of its file, once it is whole."""


@dataclass
class History:
    """The sum of the entries so far."""

    generation: int = 0
    parts: dict[int, Part] = field(default_factory=dict)
    """In their order; the last is the one that lines are added to, unless it is whole."""
    index: Index = field(default_factory=Index)
    complete: bool = False
    """Nothing has been added since the job was said to be done."""
    clean: bool = False
    """Nothing has been added since a run ended in order."""

    @property
    def open_parts(self) -> list[Part]:
        return [part for part in self.parts.values() if part.sealed is None]

    def take(self, entry: Entry) -> None:
        """One more entry. Raises `Contradiction`."""
        kind = entry.kind
        if (kind == BEGIN) != (self.generation == 0):
            raise Contradiction("the first entry, and no other, is BEGIN")
        self.clean = kind == MARK and bool(entry.flags & CLEAN)
        if kind == MARK:
            self.complete = bool(entry.flags & COMPLETE)
        elif kind == DONE:
            part = self._last()
            self.index.add(entry.number, entry.check, entry.flags)
            self._add(part, entry.length, 0 if entry.flags & NO_LINE else 1, entry)
        elif kind == PART:
            if self.parts and entry.number <= next(reversed(self.parts)):
                raise Contradiction(f"part {entry.number} follows part {next(reversed(self.parts))}")
            self.parts[entry.number] = Part(entry.number)
        elif kind == SEALED:
            if entry.number not in self.parts:
                raise Contradiction(f"part {entry.number} is sealed and was never begun")
            self.parts[entry.number].sealed = entry.size
        elif kind == BEGIN:
            if entry.check != LAYOUT:
                raise Contradiction(f"layout {entry.check} is not this version's ({LAYOUT})")
            self.generation = entry.number

    def take_all(self, columns: Columns) -> None:
        """Many entries that are known to be sound. Raises `Contradiction`."""
        row, rows = 0, len(columns.kinds)
        while row < rows:
            run = columns.kinds[row:]
            done = len(run) - len(run.lstrip(bytes([DONE])))
            if done:
                self._take_done(columns.rows(row, row + done))
                row += done
            else:
                self.take(columns.entry(row))
                row += 1

    def _take_done(self, run: Columns) -> None:
        part = self._last()
        self.index.fill(run)
        without = sum(run.flags.count(flags) for flags in (NO_LINE, NO_LINE | ERROR))
        last = len(run.flags) - 1
        while last >= 0 and run.flags[last] & NO_LINE:
            last -= 1
        self._add(part, sum(run.lengths), len(run.flags) - without, run.entry(max(last, 0)))

    def _last(self) -> Part:
        if not self.parts:
            raise Contradiction("a record is finished before a part was begun")
        part = self.parts[next(reversed(self.parts))]
        if part.sealed is not None:
            raise Contradiction(f"a record is added to part {part.number}, which is whole")
        return part

    def _add(self, part: Part, size: int, lines: int, last: Entry) -> None:
        self.complete = self.clean = False
        part.size += size
        part.lines += lines
        if lines:
            part.last = last
