"""Where the results of a job are kept: each record's one line, safe from the death of the process and from power cuts.

`open_store` goes on with what is there, or begins; `Store` takes results. See `lifecycle.batch.store.store` for what is
written and synced when, and `lifecycle.batch.store.layout` for the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lifecycle.batch.store import entries, header, journal, lock
from lifecycle.batch.store.disk import Disk, RealDisk
from lifecycle.batch.store.failures import damaged, not_opened
from lifecycle.batch.store.formats import check_installed
from lifecycle.batch.store.layout import Layout, layout_of
from lifecycle.batch.store.lock import TakeLock
from lifecycle.batch.store.recovery import recover
from lifecycle.batch.store.store import SYNC_INTERVAL, Store
from lifecycle.batch.store.undo import before
from lifecycle.errors import OutputError

__all__ = ["SYNC_INTERVAL", "Store", "open_store"]


def open_store(
    path: str | Path,
    *,
    format: str = "jsonl",
    part_size: int = 10_000,
    terms: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    disk: Disk | None = None,
    take_lock: TakeLock = lock.take,
) -> Store:
    """Open an output: begin it, or go on with it. Locked until it is closed. Blocks.

    Args:
        path: a file that is written as JSON Lines; or a folder (it exists, ends with a slash, or has no suffix) that
            is filled with numbered parts.
        format: of the parts: jsonl, jsonl.gz, jsonl.zst, parquet.
        part_size: lines of a part; the last one, and those that failed lines were taken out of, have less.
        terms: what else must be the same in all runs of the job; anything that JSON can hold.
        asked: what may change from run to run; `Store.begun_with` tells how it was in the first.
        disk, take_lock: other ones are for tests.

    Raises `OutputError` if it cannot be written or is being written by another run, was begun with other terms, is not
    as the last run left it, or was not written by Stoker at all.
    """
    disk = RealDisk() if disk is None else disk
    try:
        layout = layout_of(disk, path, format, part_size)
        check_installed(format)
        undo = before(disk, layout)
        _prepare(disk, layout)
        held = take_lock(layout.state, layout.path)
        try:
            begun_with = _begin(disk, layout, terms or {}, asked or {})
            return Store(disk, layout, recover(disk, layout), held, begun_with, undo)
        except BaseException:
            held.free()
            raise
    except OSError as error:
        raise not_opened(Path(path), error) from error


def _prepare(disk: Disk, layout: Layout) -> None:
    """Make the folder of the journal, unless there is one or the output is somebody else's."""
    if disk.kind(layout.state) == "folder":
        return
    parent = layout.path.parent
    if disk.kind(parent) != "folder":
        raise OutputError(f"output {layout.path} cannot be written: there is no folder {parent}; make it first")
    if disk.kind(layout.folder) == "nothing":
        disk.mkdir(layout.folder)
    _check_ours(disk, layout)
    disk.mkdir(layout.state)


def _check_ours(disk: Disk, layout: Layout) -> None:
    """Raise `OutputError` if results lie there without a journal."""
    single = layout.part_size is None
    for name in (layout.path.name,) if single else sorted(disk.names(layout.folder)):
        if layout.is_part(name) and (not single or disk.size(layout.path)):
            raise OutputError(
                f"output {layout.folder / name} has no journal ({layout.state}): it was not written by Stoker, or its "
                "journal was removed, so that no run can go on with it; move it away, or name another output"
            )


def _begin(disk: Disk, layout: Layout, terms: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Begin a job, or see that the one that was begun is the same. What it was begun with."""
    names = disk.names(layout.state)
    for name in (journal.BESIDE, header.BESIDE):
        if name in names:
            disk.unlink(layout.state / name)
    if journal.NAME in names:
        if header.NAME not in names:
            raise damaged(layout.path, f"{layout.state / header.NAME} is missing", layout.state)
        return header.check(disk, layout, terms)
    _check_ours(disk, layout)
    # Nothing is added to an output before its journal, and the folders that it lies in, are on the disk. The folder of
    # the results is synced by `recover`.
    header.write(disk, layout, terms, asked)
    if layout.part_size is not None:
        disk.fsync_folder(layout.folder.parent)
    first = [entries.begin(1)]
    if layout.part_size is None:
        first.append(entries.part(0))
    journal.replace(disk, layout.state, first).file.close()
    return asked
