"""Taking the records that failed out of an output, in one step that any crash leaves either undone or done.

New files of the next generation are written beside the old ones; then the journal of that generation takes the place of
the old journal, by one rename. From then on the new files count, wherever they lie: the names are given to them here,
or by the next run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lifecycle.batch.store import entries, formats, journal
from lifecycle.batch.store.disk import Disk
from lifecycle.batch.store.entries import DONE, ERROR, MARK, NO_LINE, PART, SEALED, SIZE
from lifecycle.batch.store.failures import damaged
from lifecycle.batch.store.history import Part
from lifecycle.batch.store.journal import Journal
from lifecycle.batch.store.layout import Layout
from lifecycle.batch.store.recovery import Recovered, settle

Wanted = dict[int, bytearray]
"""For each part, for each of its lines, whether it is wanted."""


def without_errors(disk: Disk, layout: Layout, old: Recovered) -> Recovered:
    """The output without the records that failed. All of it must be on the disk.

    Raises `OutputError` for a part that cannot be read, and `OSError`."""
    generation = old.history.generation + 1
    wanted = _wanted(old.journal)
    made: dict[int, Path] = {}
    try:
        sizes = _make(disk, layout, old, wanted, generation, made)
    except BaseException:
        for path in made.values():
            with suppress(OSError):
                disk.unlink(path)
        raise
    disk.fsync_folder(layout.folder)
    lines = {number: sum(each) for number, each in wanted.items()}
    written = journal.replace(disk, layout.state, _kept(old.journal, generation, lines, sizes))
    history = journal.read(written.file).history
    settle(disk, layout, history)
    for file in (old.journal.file, *old.files.values()):
        file.close()
    files = {part.number: disk.open(layout.lines(part.number, generation)) for part in history.open_parts}
    return Recovered(history, written, files)


def _wanted(old: Journal) -> Wanted:
    wanted: Wanted = {}
    lines = bytearray()
    for block in journal.blocks(old.file, old.count):
        columns = entries.columns(block)
        for row, kind in enumerate(columns.kinds):
            if kind == PART:
                lines = wanted.setdefault(columns.numbers[row], bytearray())
            elif kind == DONE and not columns.flags[row] & NO_LINE:
                lines.append(not columns.flags[row] & ERROR)
    return wanted


def _make(
    disk: Disk, layout: Layout, old: Recovered, wanted: Wanted, generation: int, made: dict[int, Path]
) -> dict[int, int]:
    """Make the new files, and enter them in `made` as they are begun. Bytes of each whole part."""
    sizes = {}
    for number, part in old.history.parts.items():
        lines = wanted[number]
        if part.sealed is not None:
            sizes[number] = part.sealed if any(lines) else 0
        if all(lines) and (part.sealed is not None or layout.part_size is None):
            continue  # it can stay; the lines of an open part are always copied, for their name has the generation
        if part.sealed is not None and not any(lines):
            continue  # `settle` removes it
        is_open = part.sealed is None and layout.part_size is not None
        made[number] = layout.lines(number, generation) if is_open else layout.made(number, generation)
        sizes[number] = _copy(disk, layout, old, part, [bool(each) for each in lines], made[number])
    return sizes


def _copy(disk: Disk, layout: Layout, old: Recovered, part: Part, wanted: list[bool], to: Path) -> int:
    """Write a part again with the lines that are wanted; synced. Bytes."""
    source = old.files.get(part.number) or disk.open(layout.final(part.number), write=False)
    try:
        out = disk.open(to, create=True)
        try:
            out.truncate(0)
            size = formats.keep("jsonl" if part.sealed is None else layout.format, source, wanted, out)
            out.fsync()
        finally:
            out.close()
    except ValueError as error:
        name = layout.final(part.number).name
        raise damaged(layout.path, f"{name} cannot be read: {error}", layout.state) from None
    finally:
        if part.number not in old.files:
            source.close()
    return size


def _kept(old: Journal, generation: int, lines: dict[int, int], sizes: dict[int, int]) -> Iterator[bytes]:
    """The entries of the next generation."""
    yield entries.begin(generation)
    for block in journal.blocks(old.file, old.count):
        columns = entries.columns(block)
        kept = bytearray()
        for row, kind in enumerate(columns.kinds):
            if kind == PART or (kind == DONE and not columns.flags[row] & ERROR):
                kept += block[row * SIZE : (row + 1) * SIZE]
            elif kind == SEALED:
                number = columns.numbers[row]
                kept += entries.sealed(number, lines[number], sizes[number])
            else:
                assert kind in (entries.BEGIN, MARK, DONE)
        if kept:
            yield bytes(kept)
