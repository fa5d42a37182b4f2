"""Processes that contend for compile caches, for tests: `python builder_process.py` forks one for each line that it
reads, which is cheap, and each does what it is told through a socket of its own. See `tests.builders`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import signal
import socket
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from lifecycle.adapter import CompileCache
from lifecycle.errors import StokerError
from lifecycle.host import Holder
from lifecycle.resources import compile_lock
from lifecycle.resources.cache_entries import clear, entries
from lifecycle.resources.compile_lock import Complete, Contender, Held
from lifecycle.resources.locks import Lease, Locks

STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.utime", "fcntl.flock")
"""What counts as a step at which a process can be told to die: events of `sys.addaudithook`, each just before what it
names is done."""


class Contending:
    """One process."""

    def __init__(self, line: socket.socket, given: dict[str, Any]) -> None:
        self.line = line.makefile("rw", encoding="utf-8")
        root = Path(given["root"]) if given["root"] else None
        self.cache = CompileCache(given["key"], root)
        self.state = Path(given["state"])
        self.lease = Lease(*given["lease"])
        self.contender = Contender(self.cache, self.state, self.lease)
        self.held: Held | None = None
        self.steps_left: int | None = None
        change(given)
        sys.addaudithook(self._count)

    def run(self) -> None:
        self.say(pid=os.getpid())
        for order in map(json.loads, self.line):
            try:
                getattr(self, order.pop("do"))(**order)
            except StokerError as error:
                self.say(error=str(error), kind=type(error).__name__)

    def say(self, **what: Any) -> None:
        self.line.write(json.dumps(what) + "\n")
        self.line.flush()

    def acquire(self) -> None:
        """All of it, as a server does it."""

        def waiting(holder: Holder | None) -> None:
            self.say(waiting=asdict(holder) if holder else None)

        wait = partial(compile_lock.acquire, waiting=waiting, note=lambda text: self.say(note=text), lease=self.lease)
        self.held = anyio.run(wait, self.cache, self.state)
        self.say(got="held" if self.held else "complete")

    def look(self) -> None:
        """One look of it."""
        found = self.contender.look()
        self.held = found if isinstance(found, Held) else self.held
        self.say(got="held" if isinstance(found, Held) else "complete" if isinstance(found, Complete) else "waiting")

    def write(self, count: int) -> None:
        """Build: `count` files, each in two halves with a pause between."""
        assert self.cache.files is not None
        for number in range(count):
            with open(self.cache.files / f"artefact-{number}", "w") as file:
                file.write("first half, ")
                file.flush()
                time.sleep(0.005)
                file.write("second half")
        self.say(wrote=count)

    def read(self) -> None:
        """All the files of the cache."""
        assert self.cache.files is not None
        self.say(files={path.name: path.read_text() for path in sorted(self.cache.files.iterdir())})

    def complete(self) -> None:
        assert self.held is not None
        self.held.complete()
        self.say(done="complete")

    def release(self) -> None:
        assert self.held is not None
        self.held.release()
        self.held = None
        self.say(done="release")

    def busy(self, beats: int) -> None:
        """Keep the main thread, where an event loop would be, busy for some heartbeats."""
        end = time.monotonic() + beats * self.lease.heartbeat
        while time.monotonic() < end:
            sum(range(1000))
        self.say(done="busy")

    def void(self) -> None:
        compile_lock.void(self.cache, self.state)
        self.say(done="void")

    def clear(self) -> None:
        """Remove the cache."""
        assert self.cache.root is not None
        for entry in entries(self.cache.root.parent, self.state):
            clear(entry, self.lease)
        self.say(done="clear")

    def lock(self) -> None:
        """The bare lock."""
        self.locks = Locks(self.cache.entry(self.state), "cache_dir", self.lease)
        self.say(taken=self.locks.take())

    def die_at(self, step: int) -> None:
        """SIGKILL, just before the given step from now."""
        self.steps_left = step
        self.say(done="die_at")

    def _count(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def change(given: dict[str, Any]) -> None:
    """Make the machine look different to this process: another host, a file system without `flock`, or one where it
    excludes nobody; other mounts; another user."""
    texts = {"/proc/self/mounts": given["mounts"], "/proc/sys/kernel/random/boot_id": given["host"]}
    read = Path.read_text

    def read_text(path: Path, *more: Any, **others: Any) -> str:
        return texts.get(str(path)) or read(path, *more, **others)

    Path.read_text = read_text  # type: ignore[method-assign,assignment]
    if given["host"]:
        socket.gethostname = lambda: given["host"]
    if given["flock"] == "succeeds":
        fcntl.flock = lambda fd, operation: None
    elif given["flock"]:
        fcntl.flock = partial(refuse, getattr(errno, given["flock"]))
    if given["user"]:
        pwd.getpwuid(0)
        os.setgroups([])
        os.setgid(given["user"])
        os.setuid(given["user"])


def refuse(number: int, *_: Any) -> None:
    raise OSError(number, os.strerror(number))


def main(kind: type[Contending] = Contending) -> None:
    anyio.run(anyio.sleep, 0)  # what is imported late, before others are forked that may not read it any more
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for given in map(json.loads, iter(sys.stdin.buffer.readline, b"")):
        if os.fork() == 0:
            try:
                line = socket.socket(socket.AF_UNIX)
                line.connect(given["socket"])
                kind(line, given).run()
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
