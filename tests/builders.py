"""Processes that contend for compile caches, and the hand that leads them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lifecycle.adapter import CompileCache

PROGRAM = Path(__file__).with_name("builder_process.py")
GUARD = 20.0
"""Seconds after which a wait that should have ended long ago fails the test."""
QUICK = (0.6, 0.1)
"""A lease for tests: seconds that it lasts, and between two heartbeats."""


class Process:
    """One process that contends for one cache."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(GUARD)
        self._socket = line
        self._line = line.makefile("rw", encoding="utf-8")
        self.pid: int = self.says()["pid"]
        self._pidfd = os.pidfd_open(self.pid)

    def tell(self, what: str, **more: Any) -> None:
        """An order, whose answer is not waited for."""
        self._line.write(json.dumps({"do": what, **more}) + "\n")
        self._line.flush()

    def says(self) -> dict[str, Any]:
        """The next thing that it says; nothing if it has died."""
        with suppress(ConnectionError):
            answer: dict[str, Any] = json.loads(self._line.readline() or "{}")
            return answer
        return {}

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """An order and its answer; nothing if it dies over it."""
        with suppress(ConnectionError):
            self.tell(what, **more)
            return self.says()
        return {}

    def until(self, what: str) -> Any:
        """The value of the next thing of this kind that it says."""
        while answer := self.says():
            if what in answer:
                return answer[what]
        raise AssertionError(f"process {self.pid} has died and not said {what!r}")

    def acquire(self) -> Any:
        """Get the cache, or see it complete: which of the two."""
        self.tell("acquire")
        return self.until("got")

    @property
    def alive(self) -> bool:
        return not select.select([self._pidfd], [], [], 0)[0]

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        assert select.select([self._pidfd], [], [], GUARD)[0]

    def close(self) -> None:
        self.kill()
        os.close(self._pidfd)
        with suppress(OSError):  # an order that it did not live to read
            self._line.close()
        self._socket.close()


class Builders:
    """Starts them. They run `program`, which does at least what `tests/builder_process.py` does."""

    def __init__(self, folder: Path, program: Path = PROGRAM) -> None:
        self._path = str(folder / "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._listener.settimeout(GUARD)
        self._forks = subprocess.Popen((sys.executable, str(program)), stdin=subprocess.PIPE)
        self._all: list[Process] = []

    def start(
        self, cache: CompileCache, state: Path, *, host: str = "", flock: str = "", mounts: str = "", user: int = 0,
        lease: tuple[float, float] = QUICK,
    ) -> Process:  # fmt: skip
        """A process that will contend for `cache`.

        Args:
            host: name of the host that it takes itself to be on.
            flock: name of the error that `flock` fails with; "succeeds" if it excludes nobody.
            mounts: what it finds in /proc/self/mounts.
            user: what it becomes before it does anything, if this process is root.
        """
        given = {
            "key": cache.key, "root": str(cache.root or ""), "state": str(state), "host": host, "flock": flock,
            "mounts": mounts, "user": user if os.geteuid() == 0 else 0, "lease": lease, "socket": self._path,
        }  # fmt: skip
        assert self._forks.stdin is not None
        self._forks.stdin.write(json.dumps(given).encode() + b"\n")
        self._forks.stdin.flush()
        line, _ = self._listener.accept()
        process = Process(line)
        self._all.append(process)
        return process

    def end_all(self) -> None:
        while self._all:
            self._all.pop().close()

    def close(self) -> None:
        self.end_all()
        self._forks.kill()
        self._forks.communicate()
        self._listener.close()


@contextmanager
def starting_builders(program: Path = PROGRAM) -> Iterator[Builders]:
    with tempfile.TemporaryDirectory(prefix="stk-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        builders = Builders(Path(folder), program)
        try:
            yield builders
        finally:
            builders.close()
