"""What the tests of processes share: a box that must be empty at the end, and trees that try to get away."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from lifecycle.adapter import Command
from lifecycle.config import ServerConfig, load_config
from lifecycle.host import Spawn
from lifecycle.journal import Kind, Record
from lifecycle.resources import keeper
from lifecycle.resources.local import lease_dir
from lifecycle.resources.ports import hold_ports
from lifecycle.resources.tree import descendants, stat_of
from lifecycle.server import Server

HERE = Path(__file__).parent
GUARD = 20.0
"""Seconds after which a wait that should have ended long ago fails the test."""


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    stat = stat_of(pid)
    return stat is not None and stat[0] not in (b"Z", b"X")


def processes_named(mark: str) -> set[int]:
    """Live processes with `mark` in their command line, but this one."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line and is_alive(int(name)):
                found.add(int(name))
    return found


def kill_together(*pids: int) -> None:
    """SIGKILL processes so that none of them sees another one's end first."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def wait_for_end(pids: Iterable[int], seconds: float = GUARD) -> set[int]:
    """Wait until none of these processes is alive; those that still are after so many seconds."""
    deadline = time.monotonic() + seconds
    left = set()
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
                left.add(pid)
        finally:
            os.close(handle)
    return left


@dataclass
class Box:
    """All that the servers of one test may use: a mark for command lines, a state folder, a folder for temporary
    files. `ports` that a test saw in use are checked at the end as well."""

    root: Path
    mark: str
    ports: set[int] = field(default_factory=set)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def processes(self) -> set[int]:
        return processes_named(self.mark)

    def keepers(self) -> set[int]:
        return {pid for pid in self.processes() if keeper.__file__ in command_line(pid)}

    def left(self) -> dict[str, Any]:
        """What is left behind now, by kind. Empty: nothing."""
        found = {
            "processes": {pid: command_line(pid) for pid in self.processes()},
            "records": [path.name for path in (self.state / "servers").glob("*.json")],
            "temporary files": [path.name for path in self.temporary.iterdir()],
            "ports": [port for port in self.ports if not is_free(port)],
        }
        return {kind: things for kind, things in found.items() if things}

    def left_at_last(self) -> dict[str, Any]:
        """What is left when every process has ended that is ending."""
        while not wait_for_end(self.processes()):
            if "processes" not in (left := self.left()):
                return left
        return self.left()

    def sweep(self) -> None:
        """For the end of a test that failed: end all that is left, each keeper after its tree."""
        named = self.processes()
        for pid in (*(each for root in named for each in descendants(root)), *named):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def spawn(self, *argv: str, **more: Any) -> Spawn:
        """What `lifecycle.resources.process.spawn` takes: a command, named by the mark."""
        given: dict[str, Any] = {"log": self.log, "log_limit": 1 << 20, "label": self.mark, "state_dir": self.state}
        command = Command(argv, more.pop("env", {}), more.pop("cwd", None), files=more.pop("files", {}))
        return Spawn(command, **{**given, **more})

    def script(self, text: str) -> tuple[str, ...]:
        """A command line for a script in Python."""
        return python("-c", text, self.mark)

    def config(self, command: str, **settings: Any) -> ServerConfig:
        """A quick configuration of the custom backend that gives up after one attempt."""
        usual: dict[str, Any] = {
            "model": self.mark, "name": self.mark, "state_dir": str(self.state), "max_attempts": 1,
            "backoff_initial": 0.01, "drain_timeout": 1.0, "terminate_timeout": 2.0,
        }  # fmt: skip
        return load_config("custom", command=command, **{**usual, **settings})[0]


def is_free(port: int) -> bool:
    """Whether nobody leases, holds or serves a port."""
    try:
        hold_ports("127.0.0.1", port, 1, lease_dir()).release()
    except Exception:
        return False
    return True


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    stat = stat_of(pid)
    assert stat is not None
    return stat[1]


def python(*argv: str) -> tuple[str, ...]:
    """A command line for a small script, started quickly."""
    return (sys.executable, "-I", "-S", *argv)


def tree(mark: str, *children: str, term: str = "exit") -> tuple[str, ...]:
    """A command line for `tree.py`, the leader of a tree that tries to get away."""
    return python(str(HERE / "tree.py"), mark, term, *children)


class Manager:
    """A whole manager in a process of its own: `manager.py`, which runs one `Server`."""

    def __init__(self, box: Box, command: str, **settings: Any) -> None:
        usual: dict[str, Any] = {
            "backend": "custom", "command": command, "model": box.mark, "name": box.mark,
            "state_dir": str(box.state), "max_attempts": 1, "drain_timeout": 1.0, "terminate_timeout": 2.0,
        }  # fmt: skip
        self.box = box
        self.process = subprocess.Popen(
            (sys.executable, str(HERE / "manager.py"), json.dumps({**usual, **settings})),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            bufsize=0,  # so that `select` sees every line
            env={**os.environ, "TMPDIR": str(box.temporary)},
        )
        self.pid = self.process.pid
        self.records: list[dict[str, Any]] = []

    def wait_for(self, state: str) -> dict[str, Any]:
        """The journal record of the transition into `state`."""
        return self.wait(lambda record: record["kind"] == "transition" and record["after"] == state)

    def wait(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next journal record that matches."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], GUARD)[0]:
            line = self.process.stdout.readline()
            assert line, f"the manager ended: {self.records[-3:]}"
            record: dict[str, Any] = json.loads(line)
            self.records.append(record)
            if record["port"]:
                self.box.ports.add(record["port"])
            if matches(record):
                return record
        raise AssertionError(f"nothing came: {self.records[-3:]}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def wait_until_ended(self) -> int:
        assert self.process.stdout is not None
        code = self.process.wait(GUARD)
        self.process.stdout.close()
        return code


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that sends no event, such as the size of a file."""
    with anyio.fail_after(GUARD):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.005)


async def state_of(server: Server, *states: str, after: int = 0) -> Record:
    """Wait until a server gets into one of `states`."""
    with anyio.fail_after(GUARD):
        return await server.driver.wait(*states, after=after)


def transitions(records: Iterable[Record]) -> list[str]:
    """The states that a server went through."""
    return [str(record.after) for record in records if record.kind is Kind.TRANSITION]
