"""One run at a time on one output. A run that is refused is told which one has it."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from lifecycle.decoding import decode
from lifecycle.errors import OutputError
from lifecycle.resources import caches
from lifecycle.resources.caches import CacheUnusable
from lifecycle.resources.locks import LEASE, Lease, Locks

HOLDER = "holder"
PATIENCE = 3
"""Heartbeats beyond the lease for which a holder that shows no life is waited for: its file system's own lock may take
longer to go (NFSv4 gives its clients 90 s, nfsd(7))."""
LOOKS = 10
"""Looks at a lease for each heartbeat that it should show."""
log = logging.getLogger("stoker.output")


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


def take(folder: Path, output: Path, lease: Lease = LEASE) -> Lock:
    """`flock`, which ends with the process however that dies; on a network file system a lease as well, see
    `lifecycle.resources.locks`. The lease of a run on another host that has died is waited for: a job that a batch
    system starts again finds it, and has nobody who would try once more."""
    locks = Locks(folder, "output", lease)
    try:
        taken = locks.take() or (locks.leased and _elsewhere(folder) and _outlast(locks, folder, output, lease))
    except CacheUnusable as error:
        raise OutputError(f"output {output} cannot be locked: {error}; end the other run first") from None
    if not taken:
        raise OutputError(f"output {output} is being written by {_holder(folder)}; wait for it, or name another output")
    with suppress(OSError):  # only for those who are refused; on a full disk it may be missing
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        (folder / HOLDER).write_bytes(msgspec.json.encode(record))
    return locks


def _outlast(locks: Locks, folder: Path, output: Path, lease: Lease) -> bool:
    """Wait until the lease of a holder on another host has run out, and take the lock; False as soon as that holder is
    seen to live."""
    log.warning(
        "output %s is locked by %s; if that has died, this goes on in %.0f s", output, _holder(folder), lease.duration
    )
    beat, until = _beat(folder), time.monotonic() + lease.duration + PATIENCE * lease.heartbeat
    while time.monotonic() < until:
        time.sleep(lease.heartbeat / LOOKS)
        if locks.take():
            return True
        if _beat(folder) not in (beat, None):
            return False
    return False


def _beat(folder: Path) -> tuple[int, int] | None:
    """What changes with each heartbeat; None if there is no lease."""
    try:
        found = (folder / caches.LEASE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _elsewhere(folder: Path) -> bool:
    """Whether the holder is on another host, or not known."""
    try:
        return str(decode((folder / HOLDER).read_bytes())["host"]) != socket.gethostname()
    except (OSError, KeyError, TypeError, msgspec.MsgspecError):
        return True


def _holder(folder: Path) -> str:
    try:
        found = decode((folder / HOLDER).read_bytes())
        pid, host, since = int(found["pid"]), str(found["host"]), float(found["since"])
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, msgspec.MsgspecError):
        return "another run"
    if host == socket.gethostname() and not psutil.pid_exists(pid):
        return "another run"  # it has just taken the lock, and this is what the one before left
    return f"another run (pid {pid} on {host}, since {when})"
