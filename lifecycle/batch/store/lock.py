"""One run at a time on one output. A run that is refused is told which one has it."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from lifecycle.errors import OutputError
from lifecycle.resources.caches import CacheUnusable
from lifecycle.resources.locks import LEASE, Locks

HOLDER = "holder"


class Lock(Protocol):
    """A lock that is held."""

    @property
    def lost(self) -> str:
        """Why it is held no longer though nobody gave it back; empty if it is."""

    def free(self) -> None:
        """Idempotent; never raises."""


class TakeLock(Protocol):
    def __call__(self, folder: Path, output: Path) -> Lock:
        """Take the lock of an output, whose journal lies in `folder`. Raises `OutputError` if another run has it, and
        `OSError`."""


def take(folder: Path, output: Path) -> Lock:
    """`flock`, which ends with the process however that dies; on a network file system a lease as well, see
    `lifecycle.resources.locks`."""
    locks = Locks(folder, "output")
    try:
        taken = locks.take()
    except CacheUnusable as error:
        raise OutputError(f"output {output} cannot be locked: {error}; end the other run first") from None
    if not taken:
        late = f", or has died less than {LEASE.duration:g} s ago" if locks.leased else ""
        raise OutputError(
            f"output {output} is being written by {_holder(folder)}{late}; wait for it, or name another output"
        )
    with suppress(OSError):  # only for those who are refused; on a full disk it may be missing
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        (folder / HOLDER).write_bytes(msgspec.json.encode(record))
    return locks


def _holder(folder: Path) -> str:
    try:
        found = msgspec.json.decode((folder / HOLDER).read_bytes())
        pid, host, since = int(found["pid"]), str(found["host"]), float(found["since"])
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, msgspec.MsgspecError):
        return "another run"
    if host == socket.gethostname() and not psutil.pid_exists(pid):
        return "another run"  # it has just taken the lock, and this is what the one before left
    return f"another run (pid {pid} on {host}, since {when})"
