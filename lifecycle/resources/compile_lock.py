"""One builds a compile cache, the others wait; when it is complete, nobody waits any more."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
from filelock import FileLock, Timeout

from lifecycle.errors import StokerError
from lifecycle.resources.reap import start_time

FIRST_LOOK, LONGEST_LOOK = 0.02, 0.25
"""Seconds between two looks at a lock that somebody else holds; the first grows to the second."""
UNSUPPORTED = frozenset((errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP))


class LockUnsupported(StokerError):
    """The file system of the lock folder has no locks."""


@dataclass(frozen=True)
class Holder:
    """Who builds a cache."""

    host: str
    pid: int
    since: float
    """Unix seconds."""


class Held:
    """The right to build a cache. Implements `lifecycle.host.CompileLock`."""

    def __init__(self, folder: Path, lock: FileLock) -> None:
        self._folder = folder
        self._lock = lock

    def complete(self) -> None:
        """See `lifecycle.host.CompileLock`."""
        _write(self._folder / "complete", _me())

    def release(self) -> None:
        """See `lifecycle.host.CompileLock`."""
        if self._lock.is_locked:
            (self._folder / "holder").unlink(missing_ok=True)
            self._lock.release()


async def acquire(key: str, root: Path) -> Held | None:
    """Wait for the right to build the cache called `key`; None as soon as the cache is complete.

    A holder that dies frees the lock at once: the kernel lets go of a dead process's `flock`. Cancelling leaves nothing
    held. Raises `LockUnsupported` on a file system without locks, `StokerError` if the folder is another user's.
    """
    folder = folder_of(key, root)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StokerError(f"lock folder {folder}: {error.strerror}; set state_dir to a folder of your own") from None
    lock = FileLock(folder / "lock", mode=0o600, thread_local=False, fallback_to_soft=False)
    wait = FIRST_LOOK
    while not (folder / "complete").exists():
        if _try(lock, folder):
            if (folder / "complete").exists():  # completed between the look and the lock
                lock.release()
                return None
            try:
                _write(folder / "holder", _me())
            except OSError as error:
                lock.release()
                raise StokerError(f"lock folder {folder}: {error.strerror}; set state_dir to another folder") from None
            return Held(folder, lock)
        await anyio.sleep(wait)
        wait = min(LONGEST_LOOK, wait * 1.5)
    return None


def _try(lock: FileLock, folder: Path) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except NotImplementedError as error:
        raise LockUnsupported(f"{folder}: {error}; {ELSEWHERE}") from None
    except OSError as error:
        if error.errno == errno.ESTALE:  # NFS: the file was replaced on another host; opened anew, it will do
            return False
        if error.errno in UNSUPPORTED:
            raise LockUnsupported(f"{folder}: {os.strerror(error.errno or 0)}; {ELSEWHERE}") from None
        raise StokerError(f"{folder}: {error.strerror or error}; set state_dir to a folder of your own") from None
    return True


ELSEWHERE = "this file system has no locks, set state_dir to a folder on another one"


def holder(key: str, root: Path) -> Holder | None:
    """Who builds the cache called `key` now, if anybody does. Of another host's holder, its word is taken."""
    try:
        found = msgspec.json.decode((folder_of(key, root) / "holder").read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    died = found.host == socket.gethostname() and start_time(found.pid) == 0
    return None if died else found


def folder_of(key: str, root: Path) -> Path:
    return root / "compile" / hashlib.sha256(key.encode()).hexdigest()[:16]


def _me() -> Holder:
    return Holder(socket.gethostname(), os.getpid(), time.time())


def _write(path: Path, holder: Holder) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(msgspec.json.encode(holder))
    beside.replace(path)
