"""Do locks work in a folder? Tried with two processes, since a lock that its own process may take twice proves nothing.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path

from lifecycle.preflight import Check, blocker, ok, warning

LOCK = """
import errno, fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError as error:
    print("refused" if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else os.strerror(error.errno), flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""
PYTHON = (sys.executable, "-I", "-S", "-c", LOCK)
PATIENCE = 10.0
"""Seconds that one of the processes may take."""


class Outcome(Enum):
    """What came of it."""

    WORKS = "works"
    """While the first process held the lock the second was refused; afterwards it got it."""
    USELESS = "useless"
    """Both had it at once."""
    STUCK = "stuck"
    """The first had ended, and the second was still refused."""
    UNSUPPORTED = "unsupported"
    """The file system has no such locks."""


def try_locks(folder: Path) -> tuple[Outcome, str]:
    """Try them in `folder`, which must exist; what came of it, and the kernel's words if there are none. Raises
    `OSError` if no file can be made there, and `subprocess.TimeoutExpired` on a file system that hangs."""
    path = folder / ".lock-trial"
    path.touch(mode=0o600)
    try:
        with _Holder(path) as first:
            if first.said != "held":
                return Outcome.UNSUPPORTED, first.said
            with _Holder(path) as second:
                if second.said != "refused":
                    return Outcome.USELESS, second.said
        with _Holder(path) as third:
            return (Outcome.WORKS if third.said == "held" else Outcome.STUCK), third.said
    finally:
        with suppress(OSError):
            path.unlink()


class _Holder:
    """A process that takes the lock and holds it until the block is left."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [*PYTHON, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def __enter__(self) -> _Holder:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate("", timeout=PATIENCE)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.communicate()


def locks_row(name: str, setting: str, folder: Path, network: str | None, outcome: Outcome, words: str) -> Check:
    """What a trial means.

    Args:
        setting: that names the folder.
        network: type of the network file system that it lies on; None if it is local.
    """
    elsewhere = f"set {setting} to a folder on a local disk"
    kind = f"on {network}, a network file system" if network else "on a local file system"
    match outcome:
        case Outcome.WORKS if network is None:
            return ok(name, f"{folder}: {kind}; locks exclude another process")
        case Outcome.WORKS:
            return warning(
                name,
                f"{folder}: {kind}; locks exclude another process of this machine",
                f"a lease with heartbeats is taken as well, but caches are slow and break there: {elsewhere}",
            )
        case Outcome.UNSUPPORTED:
            return warning(
                name,
                f"{folder}: {kind}; no locks ({words})",
                f"a lease with heartbeats takes their place; a dead builder is noticed late: {elsewhere}",
            )
        case Outcome.USELESS if network is not None:
            return warning(
                name,
                f"{folder}: {kind}; locks exclude nobody",
                f"a lease with heartbeats takes their place; better {elsewhere}",
            )
        case _:
            return blocker(
                name, f"{folder}: {kind}; locks do not work there ({outcome.value})", elsewhere
            )
