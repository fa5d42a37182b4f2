"""The store of a job's results: each finished record with exactly its one line, whatever happens to process and disk.

What is written when, for one record: its line to the file that grows, then its entry to the journal; when both are
written, `append` returns. Nothing is synced there, so the death of the process costs nothing that `append` returned
for, and a power cut at most what was appended since the last `sync`. A line without its entry is cut off by the next
run, an entry without its line is no longer finished.

What is synced when (`fsync`):

- `sync`, which is due every `SYNC_INTERVAL` seconds while records are appended, and `close`: the growing files, their
  folder if there are new names in it, the journal; then a mark is added to the journal, which the next run trusts.
- A part that is whole: all that, then the file made of its lines, the folder, and the journal with the entry that
  commits it; only then is the file given its name and are its lines removed, and the folder is synced again.
- A rewrite (`drop_errors`): the new files, the folder, the new journal, which is renamed over the old one and so
  commits them all; then they are given their names.
- A beginning: header, journal and the folders that they lie in, before the first line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

from lifecycle.batch.store import entries, formats, rewrite
from lifecycle.batch.store.disk import Disk, File
from lifecycle.batch.store.entries import CLEAN, COMPLETE, ERROR, NO_LINE, Entry
from lifecycle.batch.store.failures import not_synced, not_written
from lifecycle.batch.store.history import History, Part
from lifecycle.batch.store.journal import Journal
from lifecycle.batch.store.layout import Layout
from lifecycle.batch.store.lock import Lock
from lifecycle.batch.store.recovery import Recovered
from lifecycle.errors import OutputError

SYNC_INTERVAL = 5.0
"""Seconds between two syncs while records are appended."""
WAITING = 8
"""Whole parts that may wait for `sync` to make them into their format; at one more, `append` does it itself."""


class Store:
    """An open output, locked for this run. `open_store` makes one.

    `append`, `is_done` and the counts belong to one thread; `sync` may run in another meanwhile. After a failure every
    method but `close` raises it again.
    """

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        recovered: Recovered,
        lock: Lock,
        begun_with: Mapping[str, Any],
        undo: Callable[[], None] | None = None,
    ) -> None:
        """`undo`: takes the output away again; None if this run has not begun it."""
        self.begun_with = begun_with
        """What the job's first run asked for."""
        self._disk = disk
        self._layout = layout
        self._lock = lock
        self._undo = undo
        self._working = threading.RLock()
        """Held by whatever syncs: one at a time."""
        self._writing = threading.Lock()
        """Held while lines and entries are added: never as long as a sync takes."""
        self._failure: OutputError | None = None
        self._unsyncable = False
        self._closed = False
        self._synced_at = time.monotonic()
        self._unsynced = 0
        self._new_names = False
        self._adopt(recovered)

    def _adopt(self, recovered: Recovered) -> None:
        self._history: History = recovered.history
        self._index = recovered.history.index
        self._journal: Journal = recovered.journal
        self._files: dict[int, File] = recovered.files
        self._dirty: set[int] = set()
        self._part: Part | None = None
        self._full: list[Part] = []
        open_parts = self._history.open_parts
        last = next(reversed(self._history.parts), None)
        for part in open_parts:
            if part.number == last and not self._is_full(part):
                self._part = part
            else:
                self._full.append(part)

    @property
    def finished(self) -> int:
        """Records that are finished, with a line or without."""
        return self._index.finished

    @property
    def failed(self) -> int:
        """How many of them have failed."""
        return self._index.failed

    @property
    def complete(self) -> bool:
        """`finish` was called, by this run or an earlier one, and nothing was appended since."""
        return self._history.complete

    def is_done(self, number: int, check: int) -> bool:
        """Whether a record is finished. Raises `OutputError` if it is, but was another then."""
        if not self._index.state(number):
            return False
        if not self._index.agrees(number, check):
            raise OutputError(
                f"output {self._layout.path} has a result for record {number} of the input (counted from 0), which was "
                "another one then: the input has changed; give the one that it was begun with, or name another output"
            )
        return True

    def append(self, number: int, check: int, line: bytes | None, *, error: bool = False) -> None:
        """A record is finished. When this returns, the death of the process cannot undo it.

        Args:
            number: of the record in the input, from 0, below 2**32. Memory grows with the greatest (3 bytes each).
            check: CRC-32 of the record.
            line: its line of output, without a newline; None: it has none.
            error: it has failed; `drop_errors` makes it unfinished again.

        Raises `OutputError` if it could not be written; then nothing of it is left. Raises `ValueError` for a record
        that is finished already, or a line that is more than one.
        """
        if self._index.state(number):
            raise ValueError(f"record {number} is finished already")
        data = b"" if line is None else line + b"\n"
        if data.find(b"\n", 0, -1) >= 0:
            raise ValueError(f"the line of record {number} has a newline in it")
        flags = (ERROR if error else 0) | (NO_LINE if line is None else 0)
        entry = Entry(entries.DONE, flags, number, check, len(data), crc32(data) if data else 0)
        raw = entries.done(number, check, flags, entry.length, entry.crc)
        if len(self._full) > WAITING:
            self.sync()
        with self._writing:
            self._check_usable()
            part = self._part
            try:
                part = part or self._begin_part()
                if data:
                    self._files[part.number].write(data, part.size)
                self._journal.append(raw)
            except OSError as failure:
                if part is not None:
                    with suppress(OSError):
                        self._files[part.number].truncate(part.size)
                raise self._fail(not_written(self._layout.path, failure)) from failure
            self._history.take(entry)
            self._dirty.add(part.number)
            self._unsynced += 1
            if self._is_full(part):
                self._full.append(part)
                self._part = None

    @property
    def sync_due(self) -> bool:
        """Whether `sync` should be called: a part is whole, or results have waited for `SYNC_INTERVAL`."""
        if self._full:
            return True
        return self._unsynced > 0 and time.monotonic() - self._synced_at >= SYNC_INTERVAL

    def sync(self) -> None:
        """Bring onto the disk what was appended before, and make whole parts into their format. Blocks: call it in a
        thread; records may be appended meanwhile. Raises `OutputError` if the disk fails or fills up."""
        with self._working:
            self._check_usable()
            with self._writing:
                full = list(self._full)
            self._sync()
            for part in full:
                self._seal(part)

    def drop_errors(self) -> int:
        """Make the records that failed unfinished again, and take their lines out. How many. Blocks; nothing may be
        appended meanwhile.

        Raises `OutputError` if the disk fails or fills up, or a part cannot be read. Then all of it has happened or
        nothing, and the next run sees which.
        """
        with self._working:
            self._check_usable()
            dropped = self.failed
            if not dropped:
                return 0
            self.sync()
            old = Recovered(self._history, self._journal, self._files)
            try:
                self._adopt(rewrite.without_errors(self._disk, self._layout, old))
            except OutputError as failure:
                raise self._fail(failure) from None
            except OSError as failure:
                self._unsyncable = True  # by the name of the file it may be either
                raise self._fail(not_written(self._layout.path, failure)) from failure
            return dropped

    def finish(self) -> None:
        """The job is done: the last part is whole, with however many lines. Blocks, as `sync` does; nothing may be
        appended meanwhile."""
        with self._working:
            self._check_usable()
            if self._part is not None and self._layout.part_size is not None:
                self._full.append(self._part)
                self._part = None
            self.sync()
            self._history.complete = True
            self._sync(always=True)
            self._fsync(self._journal.file)

    def abandon(self) -> None:
        """Close; an output that this run has begun and put nothing into is taken away again."""
        with self._working:
            if self._undo is not None and not (self._closed or self._failure or self.finished):
                self._undo()
                self._unsyncable, self._failure = True, OutputError(f"output {self._layout.path} was taken away")
            self.close()

    def close(self) -> None:
        """Sync, unlock. Idempotent. Raises `OutputError` if the last results did not reach the disk."""
        with self._working:
            if self._closed:
                return
            self._closed = True
            try:
                if self._failure is None:
                    self._sync(CLEAN, always=True)
                    self._fsync(self._journal.file)
                elif not self._unsyncable:
                    for file in self._files.values():
                        self._fsync(file)
                    self._fsync_folder(self._unsynced)
                    self._fsync(self._journal.file)
            finally:
                for file in (*self._files.values(), self._journal.file):
                    with suppress(OSError):
                        file.close()
                self._lock.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin_part(self) -> Part:
        number = next(reversed(self._history.parts), -1) + 1
        file = self._disk.open(self._layout.lines(number, self._history.generation), create=True)
        try:
            self._journal.append(entries.part(number))
        except BaseException:
            file.close()
            raise
        self._history.take(Entry(entries.PART, 0, number, 0, 0, 0))
        self._files[number] = file
        self._new_names = True
        self._part = self._history.parts[number]
        return self._part

    def _sync(self, flags: int = 0, *, always: bool = False) -> None:
        """Bring onto the disk what is written now, then say so in the journal."""
        if self._lock.lost:
            raise self._fail(OutputError(f"output {self._layout.path} is not locked any more: {self._lock.lost}"))
        with self._writing:
            dirty = {number: self._history.parts[number].size for number in self._dirty}
            names, unsynced = self._new_names, self._unsynced
            count, adler = self._journal.count, self._journal.adler
            self._dirty, self._new_names, self._unsynced = set(), False, 0
            self._synced_at = time.monotonic()
        if not (dirty or names or always):
            return
        for number, size in dirty.items():
            self._check_there(number, size)
            self._fsync(self._files[number], unsynced)
        if names:
            self._fsync_folder(unsynced)
        self._fsync(self._journal.file, unsynced)
        with self._writing:
            flags |= COMPLETE if self._history.complete else 0
            self._note(entries.mark(count, adler, flags))

    def _check_there(self, number: int, size: int) -> None:
        place = self._layout.lines(number, self._history.generation)
        found = self._disk.size(place)
        if found is None or found < size:
            raise self._fail(OutputError(
                f"output {place} was moved, removed or cut while it was written; put it back, or name another output"
            ))  # fmt: skip

    def _seal(self, part: Part) -> None:
        """Make the lines of a part, which are synced, into its file."""
        layout, generation = self._layout, self._history.generation
        lines, made = layout.lines(part.number, generation), layout.made(part.number, generation)
        size = part.size
        if part.lines and made != lines:
            size = self._convert(part, made)
            self._fsync_folder(part.lines)
        with self._writing:
            raw = entries.sealed(part.number, part.lines, size)
            self._note(raw)
            entry = entries.parse(raw)
            assert entry is not None
            self._history.take(entry)
            self._full.remove(part)
        self._fsync(self._journal.file, self._unsynced)
        try:
            if part.lines:
                self._disk.rename(made, layout.final(part.number))
            if made != lines or not part.lines:
                self._disk.unlink(lines)
            self._disk.fsync_folder(layout.folder)
            self._files.pop(part.number).close()
        except OSError as failure:
            raise self._fail(not_written(layout.path, failure)) from failure

    def _convert(self, part: Part, made: Path) -> int:
        format = self._layout.format
        try:
            file = self._disk.open(made, create=True)
            try:
                with self._part_before(part) as before:
                    size = formats.convert(format, self._files[part.number], file, before)
                self._fsync(file, part.lines)
            except BaseException:
                with suppress(OSError):
                    self._disk.unlink(made)
                raise
            finally:
                file.close()
        except OutputError:
            raise
        except OSError as failure:
            raise self._fail(not_written(self._layout.path, failure)) from failure
        except Exception as failure:
            lines = self._layout.lines(part.number, self._history.generation)
            raise self._fail(OutputError(
                f"output {self._layout.path}: part {part.number} cannot be made into {format}: {failure!r}; its "
                f"{part.lines} lines are safe in {lines}"
            )) from failure  # fmt: skip
        return size

    @contextmanager
    def _part_before(self, part: Part) -> Iterator[File | None]:
        whole = [each.number for each in self._history.parts.values() if each.sealed and each.number < part.number]
        file = self._disk.open(self._layout.final(whole[-1]), write=False) if whole else None
        try:
            yield file
        finally:
            if file is not None:
                file.close()

    def _note(self, raw: bytes) -> None:
        try:
            self._journal.append(raw)
        except OSError as failure:
            raise self._fail(not_written(self._layout.path, failure)) from failure

    def _fsync(self, file: File, unsafe: int = 0) -> None:
        try:
            file.fsync()
        except OSError as failure:
            raise self._unsafe(failure, unsafe) from failure

    def _fsync_folder(self, unsafe: int) -> None:
        try:
            self._disk.fsync_folder(self._layout.folder)
        except OSError as failure:
            raise self._unsafe(failure, unsafe) from failure

    def _unsafe(self, failure: OSError, results: int) -> OutputError:
        self._unsyncable = True
        return self._fail(not_synced(self._layout.path, failure, max(results, self._unsynced)))

    def _fail(self, failure: OutputError) -> OutputError:
        self._failure = self._failure or failure
        return failure

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise OutputError(str(self._failure)) from self._failure
        if self._closed:
            raise OutputError(f"output {self._layout.path} is closed")

    def _is_full(self, part: Part) -> bool:
        return self._layout.part_size is not None and part.lines >= self._layout.part_size
