"""A compile cache on disk.

    root/<digest of the key>/     the entry, which only its user can open
        lock, lease               see `lifecycle.resources.compile_lock`
        holder                    who builds the cache now
        complete                  the mark: the cache is complete; by whom, when, for which key
        files/                    what the engine has compiled
        .old-*                    files that were never completed, or have proved to be broken; on their way out

Only who holds the lock writes here; everybody reads. Records are written beside and renamed, so nobody sees a half.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
from platformdirs import user_cache_path

from lifecycle.adapter import CompileCache
from lifecycle.decoding import decode
from lifecycle.errors import StokerError
from lifecycle.host import Holder
from lifecycle.resources.folder import remove
from lifecycle.resources.reap import TORN_AFTER, boot_id, is_alive, pid_namespace, start_time

LOCK, LEASE, HOLDER, MARK, FILES, OLD = "lock", "lease", "holder", "complete", "files", ".old-"


class CacheUnusable(StokerError):
    """The folder of a compile cache cannot be used; the message says why and what to set instead."""


@dataclass(frozen=True)
class Builder:
    """The record of who builds a cache: a process that no other one can be taken for."""

    key: str
    host: str
    pid: int
    started: int
    """Clock ticks from boot to the start of the process: tells it from a later one with the same pid."""
    boot: str
    namespace: str
    """In which the pid is."""
    since: float
    """Unix seconds."""

    @property
    def holder(self) -> Holder:
        return Holder(self.host, self.pid, self.since)

    @property
    def is_here(self) -> bool:
        """Its pid means something here: not another host, another container, or before a reboot."""
        return (self.boot, self.namespace) == here()

    @property
    def alive(self) -> bool:
        """It lives, and that can be seen from here."""
        return self.is_here and is_alive(self.pid, self.started)

    @property
    def dead(self) -> bool:
        """It has died, and that can be seen from here."""
        return not self.alive if self.is_here else (self.boot != here()[0] and self.host == socket.gethostname())


@dataclass(frozen=True)
class Mark:
    """What says that a cache is complete."""

    key: str
    engine: str
    folder: str
    """Where its files are; empty if the engine keeps them elsewhere."""
    host: str
    pid: int
    at: float
    """Unix seconds."""
    kept: bool
    """There were files in the folder: if there are none later, the mark is void."""


def default_root() -> Path:
    """This user's folder for compile caches; each engine has a folder in it."""
    return user_cache_path("stoker", appauthor=False)


@cache
def here() -> tuple[str, str]:
    """In which a pid means something: since when, and in which namespace. Asked at every look of those who wait."""
    return boot_id(), pid_namespace()


def new_builder(key: str) -> Builder:
    """This process, as the builder of a cache from now on."""
    pid = os.getpid()
    return Builder(key, socket.gethostname(), pid, start_time(pid), *here(), time.time())


def check_owner(entry: Path, setting: str) -> None:
    """Raise `CacheUnusable` if a cache is there and is another user's: what lies in it is code that our engine would
    run. (The system's own user could change the engine as well.) Raises `OSError` (not for what is missing)."""
    with suppress(FileNotFoundError):
        owner = entry.stat().st_uid
        if owner not in (os.geteuid(), 0):
            raise CacheUnusable(
                f"{entry} belongs to {user(owner)}, and compiled code is not taken from another user; "
                f"set {setting} to a folder of your own"
            )


def is_complete(cache: CompileCache, entry: Path) -> bool:
    """Whether a cache has a mark that is not void. Raises `OSError` (not for what is missing).

    The files are looked at before the mark: who builds takes the mark away before there are new files, so files of
    now and a mark of before are never seen together.
    """
    filled = cache.files is not None and has_files(cache.files)
    mark = mark_of(entry)
    return mark is not None and mark.key == cache.key and (filled or not mark.kept or cache.files is None)


def mark_of(entry: Path) -> Mark | None:
    """The mark of a cache, void or not; None if there is none or it makes no sense. Raises `OSError`."""
    return _read(entry / MARK, Mark)


def builder_of(entry: Path) -> Builder | None:
    """Who was the last to say that it builds a cache, and has not said that it does not. Raises `OSError`."""
    return _read(entry / HOLDER, Builder)


def has_files(folder: Path) -> bool:
    """Whether a folder is there and not empty. Raises `OSError`."""
    try:
        with os.scandir(folder) as inside:
            return next(inside, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def begin(cache: CompileCache, entry: Path) -> Builder:
    """Claim a cache whose lock is held: no mark, no files of a build that was never completed, and a record of who
    builds. Raises `OSError`."""
    (entry / MARK).unlink(missing_ok=True)
    put_away(entry)
    builder = new_builder(cache.key)
    write(entry / HOLDER, builder)
    sweep(entry)
    if cache.files is not None:
        cache.files.mkdir(exist_ok=True, mode=0o700)
    return builder


def complete(cache: CompileCache, entry: Path) -> None:
    """Write the mark. Raises `OSError`."""
    files = cache.files
    kept = files is not None and has_files(files)
    engine = cache.root.name if cache.root is not None else ""
    mark = Mark(cache.key, engine, str(files or ""), socket.gethostname(), os.getpid(), time.time(), kept)
    write(entry / MARK, mark)


def end(entry: Path, builder: Builder) -> None:
    """Take away the record of who builds, if it is still this one."""
    with suppress(OSError):
        if builder_of(entry) == builder:
            (entry / HOLDER).unlink()


def drop_empty(entry: Path) -> None:
    """Remove an entry whose lock is held, if nobody has built or builds anything in it."""
    with suppress(OSError):
        others = {path.name for path in entry.iterdir()} - {LOCK, LEASE, FILES}
        if not others and not has_files(entry / FILES):
            take_away(entry)


def take_away(entry: Path) -> None:
    """Remove an entry whose lock is held, all of it. Raises `OSError`."""
    # Out of the way first: whoever comes now makes the folder anew, and does not meet a half of the old one.
    entry.rename(entry.with_name(f"{OLD}{secrets.token_hex(8)}"))
    for old in entry.parent.glob(f"{OLD}*"):
        remove(str(old))


def put_away(entry: Path) -> None:
    """Rename the files of a cache, if it has any, so that nobody finds them any more. Raises `OSError`."""
    files = entry / FILES
    with suppress(FileNotFoundError):
        if not files.is_dir() or has_files(files):
            files.rename(entry / f"{OLD}{secrets.token_hex(8)}")


def sweep(entry: Path) -> None:
    """Remove files that were put away, and records whose writers were killed as they wrote, as far as that goes."""
    for old in entry.glob(f"{OLD}*"):
        remove(str(old))
    for name in (HOLDER, MARK):
        for torn in entry.glob(f".{name}.*"):
            with suppress(OSError):
                if time.time() - torn.stat().st_mtime > TORN_AFTER:
                    torn.unlink()


def write(path: Path, record: Builder | Mark) -> None:
    """Write a record, whole or not at all. Raises `OSError`.

    Not forced to disk, which can take seconds on a busy one: a record that a power failure tears is void. One that was
    forced would outlive files of the engine's that were not.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    left = msgspec.json.encode(record)
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)  # where a file system over a network says that there is no room
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def unusable(error: OSError, entry: Path, setting: str) -> CacheUnusable:
    """An error of the file system, in words: what, where, whose, and what to set instead."""
    path = Path(error.filename) if isinstance(error.filename, str) else entry
    where = path if path.is_absolute() else entry
    elsewhere = f"set {setting} to a folder of your own"
    if error.errno in (errno.EACCES, errno.EPERM):
        for place in (where, *where.parents):
            with suppress(OSError):
                owner = place.lstat().st_uid
                whose = f" ({place} belongs to {user(owner)})" if owner != os.geteuid() else ""
                return CacheUnusable(f"{where}: {error.strerror}{whose}; {elsewhere}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        elsewhere = f"make room there, or set {setting} to a folder on another disk"
    return CacheUnusable(f"{where}: {error.strerror or error}; {elsewhere}")


def user(number: int) -> str:
    """A user's name and number, for messages."""
    try:
        return f"user {pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return f"user {number}"


Record = TypeVar("Record", Builder, Mark)


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return decode(path.read_bytes(), kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
