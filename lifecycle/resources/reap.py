"""What dead managers left behind: found by its records and its tag, and ended. Never a stranger, never a reused pid."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from lifecycle.resources.keeper import kill, remove, stat_of

TAG = "STOKER_SERVER"
"""The variable that marks every process of a server's tree. (Not one that begins with VLLM_: those change vLLM's
compile cache key.)"""
SIGHT = 0.01
"""Seconds between two looks at processes that have been killed."""


@dataclass(frozen=True)
class Leftover:
    """One server's record in the state folder: written when it starts, removed when nothing of it is left."""

    id: str
    label: str
    manager: int
    manager_started: int
    keeper: int
    keeper_started: int
    tmpdir: str
    folder: str
    main: int = 0
    """The server's main process, which leads its session; 0 before it has started."""
    main_started: int = 0
    pipe: int = 0
    """Inode of the pipe that the whole tree writes to."""

    @property
    def path(self) -> Path:
        return Path(self.folder) / f"{self.id}.json"

    @property
    def orphaned(self) -> bool:
        """Its manager or its keeper has died."""
        return start_time(self.manager) != self.manager_started or start_time(self.keeper) != self.keeper_started

    def processes(self) -> dict[int, int]:
        """Live processes of the tree by pid, with their start times."""
        found = tagged(self.id)
        if self.main and start_time(self.main) in (0, self.main_started):  # else the pid is somebody else's by now
            found.update(in_session(self.main, self.main_started))
        if self.pipe:
            found.update(holding(self.pipe, self.main_started))
        if start_time(self.keeper) == self.keeper_started:
            found[self.keeper] = self.keeper_started
        return found

    def end(self) -> None:
        """SIGKILL until no process of the tree is left; then remove its folder and its record."""
        while left := self.processes():
            for pid, started in left.items():
                kill(pid, started)
            time.sleep(SIGHT)
        remove(self.tmpdir)
        self.forget()

    def started(self, main: int, pipe: int) -> Leftover:
        """The same record with the main process in it, written down."""
        stat = stat_of(main)  # a zombie has its start time still
        record = replace(self, main=main, main_started=stat[2] if stat else 0, pipe=pipe)
        record.write()
        return record

    def write(self) -> None:
        beside = self.path.with_name(f".{self.id}")
        beside.write_bytes(msgspec.json.encode(asdict(self)))
        beside.replace(self.path)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def new_record(state_dir: Path, label: str, keeper: int, tmpdir: str) -> Leftover:
    """Write the record of a server that is about to start."""
    folder = state_dir / "servers"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = Leftover(
        id=secrets.token_hex(8),
        label=label,
        manager=os.getpid(),
        manager_started=start_time(os.getpid()),
        keeper=keeper,
        keeper_started=start_time(keeper),
        tmpdir=tmpdir,
        folder=str(folder),
    )
    record.write()
    return record


def records(state_dir: Path) -> Iterator[Leftover]:
    """Every server that this state folder knows of, running or left behind."""
    for path in sorted((state_dir / "servers").glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            yield msgspec.json.decode(path.read_bytes(), type=Leftover)


def leftovers(state_dir: Path) -> list[Leftover]:
    """Servers whose manager or keeper has died."""
    return [record for record in records(state_dir) if record.orphaned]


def reap(state_dir: Path) -> list[Leftover]:
    """End everything that dead managers left in this state folder. What was found."""
    found = leftovers(state_dir)
    for leftover in found:
        leftover.end()
    return found


def start_time(pid: int) -> int:
    """Clock ticks from boot to a process's start (proc(5), field 22 of stat), or 0 if it is dead or a zombie."""
    stat = stat_of(pid)
    return 0 if stat is None or stat[0] in (b"Z", b"X") else int(stat[2])


def in_session(leader: int, since: int) -> dict[int, int]:
    """Live processes of this user in the session of `leader` that started no earlier than it. Finds those whose tag is
    gone: `setproctitle`, which vLLM uses, writes over the environment that /proc shows."""
    found = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            started = start_time(pid)
            if os.getsid(pid) == leader and started >= since and os.stat(f"/proc/{pid}").st_uid == os.getuid():
                found[pid] = started
    return found


def tagged(server: str) -> dict[int, int]:
    """Live processes of this user that carry a server's tag, by pid, with their start times."""
    mark = f"{TAG}={server}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                variables = environ.read().split(b"\0")
        except OSError:
            continue  # gone, or another user's
        started = start_time(int(name))
        if mark in variables and started:
            found[int(name)] = started
    return found


def holding(pipe: int, since: int) -> dict[int, int]:
    """Live processes of this user that have this pipe open and started no earlier than `since`: finds those that have
    left the session and whose tag is gone."""
    target = f"pipe:[{pipe}]"
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                if os.readlink(f"/proc/{name}/fd/{fd}") == target:
                    started = start_time(int(name))
                    if started >= since:
                        found[int(name)] = started
                    break
    return found
