"""What lies in the folders of compile caches, for people: shown, and removed if nobody builds it."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lifecycle.errors import StokerError
from lifecycle.host import Holder
from lifecycle.resources import caches
from lifecycle.resources.cache_users import Environments, environments, users
from lifecycle.resources.locks import LEASE, Lease, Locks

NAME = re.compile("[0-9a-f]{16}")
"""What `lifecycle.adapter.CompileCache.digest` makes."""
LOOK = 0.25
"""Seconds between two looks at a lease that may have been given up."""


@dataclass(frozen=True)
class Entry:
    """One compile cache."""

    digest: str
    key: str
    """Empty if nothing in it tells."""
    engine: str
    """Name of the folder that it lies in; empty for a cache of which Stoker keeps only the mark."""
    state: str
    """complete; building; void (the mark is there, and its files are not, or it makes no sense); unfinished (nobody
    builds it, and it has no mark)."""
    at: float
    """Unix seconds: when it was completed, when its build began, or when it was last changed."""
    size: int
    """Bytes of its files."""
    holder: Holder | None
    """Who builds it, or who has completed it."""
    folder: str
    users: tuple[int, ...] = ()
    """Processes of this user on this host that are told to use it."""


class InUse(StokerError):
    """A cache is being built or used."""


def being_built(entry: Entry, holder: Holder | None) -> InUse:
    who = f"{holder.host}, pid {holder.pid}" if holder is not None else "a process that has not said who it is"
    return InUse(f"{entry.digest} is being built by {who}")


def being_used(entry: Entry, pids: Iterable[int]) -> InUse:
    who = ", ".join(f"pid {pid}" for pid in pids)
    return InUse(f"{entry.digest} is used by {who}: end that server first, or remove it all the same with --force")


def entries(cache_dir: Path, state_dir: Path) -> list[Entry]:
    """Every compile cache of a cache folder (one folder for each engine) and of a state folder."""
    among = environments()
    found = [read(path, engine.name, among) for engine in _folders(cache_dir) for path in _folders(engine)]
    found += [read(path, "", among) for path in _folders(state_dir / "compile")]
    return [entry for entry in found if entry is not None]


def chosen(found: Iterable[Entry], word: str) -> list[Entry]:
    """Those whose digest begins with `word`, or whose key has it in it."""
    return [entry for entry in found if entry.digest.startswith(word) or word in entry.key]


def read(folder: Path, engine: str, among: Environments) -> Entry | None:
    """The cache in a folder, or None if there is none that can be read."""
    if not NAME.fullmatch(folder.name):
        return None
    try:
        builder = building(folder)
        mark = caches.mark_of(folder)
        marked = (folder / caches.MARK).exists()
        valid = mark is not None and (not mark.kept or caches.has_files(folder / caches.FILES))
        changed = folder.stat().st_mtime
        if not marked and not (folder / caches.LOCK).exists():
            return None
    except OSError:
        return None
    state = "complete" if valid else "building" if builder is not None else "void" if marked else "unfinished"
    holder, at = builder, changed
    if valid and mark is not None:
        holder, at = Holder(mark.host, mark.pid, mark.at), mark.at
    elif builder is not None:
        at = builder.since
    record = mark or caches.builder_of(folder)
    key = record.key if record is not None else ""
    size = size_of(folder)
    return Entry(folder.name, key, engine, state, at, size, holder, str(folder), users(folder, among))


def building(folder: Path) -> Holder | None:
    """Who builds a cache now, if anybody does. Raises `OSError`."""
    builder = caches.builder_of(folder)
    if builder is None or builder.dead:
        return None
    if not builder.alive and not (folder / caches.LEASE).exists() and _is_free(folder / caches.LOCK):
        return None
    return builder.holder


def size_of(folder: Path) -> int:
    """Bytes of all the files in a folder."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def clear(entry: Entry, lease: Lease = LEASE, *, force: bool = False) -> None:
    """Remove a cache, all of it. Raises `InUse` if somebody builds it or, unless `force`, uses it now,
    `caches.CacheUnusable` if it cannot be removed.

    A lease is not taken from a builder on another host before it has been still for as long as it lasts, which is
    waited for as long as no heartbeat is seen.
    """
    folder = Path(entry.folder)
    setting = "cache_dir" if entry.engine else "state_dir"
    try:
        caches.check_owner(folder, setting)
        locks = Locks(folder, setting, lease)
        if not _take(locks, folder / caches.LEASE, lease):
            raise being_built(entry, building(folder))
        try:
            builder = caches.builder_of(folder)
            if builder is not None and builder.alive:  # with a lock that excludes nobody
                raise being_built(entry, builder.holder)
            if not force and (found := users(folder, environments())):
                raise being_used(entry, found)
            caches.take_away(folder)
        finally:
            locks.free()
    except OSError as error:
        raise caches.unusable(error, folder, setting) from None


def _take(locks: Locks, path: Path, lease: Lease) -> bool:
    beat = _changed(path)
    deadline = time.monotonic() + lease.duration + 4 * LOOK
    late = False
    while not locks.take():
        if late or not locks.leased or _changed(path) != beat:
            return False
        late = time.monotonic() > deadline  # one more look then: this thread may have been kept waiting itself
        time.sleep(LOOK)
    return True


def _changed(path: Path) -> tuple[int, int]:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return 0, 0


def _folders(parent: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    return []


def _is_free(lock: Path) -> bool:
    """Whether nobody holds a `flock`, as far as that can be seen from here."""
    try:
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
