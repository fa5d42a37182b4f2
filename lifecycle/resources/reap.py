"""What dead managers left behind: found by its records and its tag, and ended. Never a stranger, never a reused pid."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from lifecycle.decoding import decode
from lifecycle.errors import StokerError, Tended
from lifecycle.host import Keepsake, Kept
from lifecycle.resources.folder import remove
from lifecycle.resources.shared_memory import Notes
from lifecycle.resources.tree import descendants, kill, stat_of

TAG = "STOKER_SERVER"
"""The variable that marks every process of a server's tree. (Not one that begins with VLLM_: those change vLLM's
compile cache key.)"""
SIGHT = 0.01
"""Seconds between two looks at processes that have been killed."""
PATIENCE = 10.0
"""Seconds after which processes that survive SIGKILL (a driver does not let them go) are left for another time."""

TORN_AFTER = 3600.0
"""Seconds after which a record that is not complete will never be."""


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
    host: str
    boot: str
    """What the kernel calls the time since it was started, the same in all its containers."""
    namespace: str
    """In which the pids are."""
    main: int = 0
    """The server's main process, which leads its session; 0 before it has started."""
    main_started: int = 0
    pipe: int = 0
    """Inode of the pipe that the whole tree writes to."""
    door: str = ""
    """Socket by which another manager can come in once this one has died and the keeper keeps the server."""
    kept: bool = False
    """Its keeper may keep it then, and ends it itself when nobody comes in time."""

    @property
    def path(self) -> Path:
        return Path(self.folder) / f"{self.id}.json"

    @property
    def notes(self) -> Path:
        """What shared memory its tree has made; see `lifecycle.resources.shared_memory`."""
        return Path(self.folder) / f"{self.id}.shm"

    @property
    def keepsake(self) -> Path:
        """What its manager leaves for the next one; see `lifecycle.host.Keepsake`."""
        return Path(self.folder) / f"{self.id}.keepsake"

    @property
    def is_kept(self) -> bool:
        """Its manager has died, and its keeper may keep it."""
        died = self.is_here and not is_alive(self.manager, self.manager_started)
        return self.kept and died and is_alive(self.keeper, self.keeper_started)

    @property
    def is_here(self) -> bool:
        """Its pids mean something here: not another host with the same home folder, not before a reboot."""
        return (self.boot, self.namespace) == (boot_id(), pid_namespace())

    @property
    def orphaned(self) -> bool:
        """Its manager or its keeper has died, and it is not kept. Of a server of another host or container, nothing can
        be said here."""
        if self.is_kept:
            return False
        if self.is_here:
            return not (is_alive(self.manager, self.manager_started) and is_alive(self.keeper, self.keeper_started))
        return self.boot != boot_id() and self.host == socket.gethostname()

    def processes(self) -> dict[int, int]:
        """Live processes of the tree by pid, with their start times."""
        if not self.is_here:
            return {}
        found = tagged(self.id)
        if self.main_started:
            found.update(holding(self.pipe, self.main_started))
            # A session counts if something else shows that it is ours: its number may be another one's by now.
            if is_alive(self.main, self.main_started) or any(session_of(pid) == self.main for pid in found):
                found.update(in_session(self.main, self.main_started))
        if is_alive(self.keeper, self.keeper_started):
            found[self.keeper] = self.keeper_started
        return found

    def memory(self) -> list[Path]:
        """Files in /dev/shm that its tree has made and that are there still."""
        return [Path(path) for path in Notes(str(self.notes)).left()] if self.is_here else []

    def strike(self, struck: dict[int, int]) -> bool:
        """SIGKILL every process of the tree that is found or is among those `struck` before, which it adds to: one that
        dies loses the environment by which it is found before the files, ports and memory that it has. True if none is
        left: its folder, its shared memory and its record are removed."""
        struck.update(self.processes())
        left = {pid: started for pid, started in struck.items() if is_alive(pid, started)}
        notes = Notes(str(self.notes))
        if left:
            notes.look(left)
        for pid, started in left.items():
            kill(pid, started)
        if not left:
            remove(self.tmpdir)
            if self.is_here:
                notes.remove()
            self.forget()
        return not left

    def end(self, patience: float = PATIENCE) -> bool:
        """Strike until nothing is left, at most for so many seconds; whether nothing is."""
        deadline = time.monotonic() + patience
        struck: dict[int, int] = {}
        while not self.strike(struck):
            if time.monotonic() >= deadline:
                return False
            time.sleep(SIGHT)
        return True

    def started(self, main: int, pipe: int) -> Leftover:
        """The same record with the main process in it, written down."""
        stat = stat_of(main)  # a zombie has its start time still
        record = replace(self, main=main, main_started=stat[2] if stat else 0, pipe=pipe)
        record.write()
        return record

    def keep(self, sake: Keepsake) -> Leftover:
        """The same record of a server that may be kept; keepsake and record are written down. Raises `OSError`."""
        beside = self.keepsake.with_name(f".{self.id}.keepsake")
        beside.write_bytes(msgspec.json.encode(asdict(sake)))
        beside.replace(self.keepsake)
        record = replace(self, kept=True)
        if not self.kept:
            record.write()
        return record

    def write(self) -> None:
        """Write the record. Raises `OSError`."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = self.path.with_name(f".{self.id}")
        beside.write_bytes(msgspec.json.encode(asdict(self)))
        beside.replace(self.path)

    def forget(self) -> None:
        """Remove the record, and what lies beside it, if it is there."""
        for path in (self.path, self.notes, self.keepsake, *([Path(self.door)] if self.door else [])):
            with contextlib.suppress(OSError):
                path.unlink()


def new_record(state_dir: Path, server: str, label: str, keeper: int, tmpdir: str, door: str = "") -> Leftover:
    """The record, not yet written, of a server that is about to start."""
    return Leftover(
        id=server,
        label=label,
        manager=os.getpid(),
        manager_started=start_time(os.getpid()),
        keeper=keeper,
        keeper_started=start_time(keeper),
        tmpdir=tmpdir,
        folder=str(state_dir / "servers"),
        host=socket.gethostname(),
        boot=boot_id(),
        namespace=pid_namespace(),
        door=door,
    )


def records(state_dir: Path) -> Iterator[Leftover]:
    """Every server that this state folder knows of, running or left behind."""
    for path in sorted((state_dir / "servers").glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            yield decode(path.read_bytes(), Leftover)


def find_kept(state_dir: Path, label: str) -> Kept | None:
    """See `lifecycle.host.Host.find_kept`."""
    found = []
    for record in records(state_dir):
        if record.label != label or not record.is_here:
            continue
        if is_alive(record.manager, record.manager_started):
            raise Tended(f"server {label!r} is tended by manager {record.manager}, which lives: stop that first")
        sake = keepsake_of(record)
        if sake is not None and record.is_kept and is_alive(record.main, record.main_started):
            tree = descendants(record.keeper)
            pids = frozenset(pid for pid, (state, *_) in tree.items() if state not in (b"Z", b"X"))
            found.append(Kept(sake, record.manager, pids, record))
    if len(found) > 1:
        pids_of = ", ".join(str(kept.keepsake.pid) for kept in found)
        raise StokerError(f"several servers {label!r} are kept (pids {pids_of}): give each a name of its own")
    return found[0] if found else None


def record_of(record: Leftover) -> Leftover | None:
    """What a record says now; None if it has gone."""
    try:
        return decode(record.path.read_bytes(), Leftover)
    except (OSError, msgspec.MsgspecError):
        return None


def keepsake_of(record: Leftover) -> Keepsake | None:
    """What a server's manager has left; None if it has left nothing that can be read."""
    try:
        return decode(record.keepsake.read_bytes(), Keepsake)
    except (OSError, msgspec.MsgspecError):
        return None


def leftovers(state_dir: Path) -> list[Leftover]:
    """Servers whose manager or keeper has died."""
    return [record for record in records(state_dir) if record.orphaned]


def reap(state_dir: Path) -> list[Leftover]:
    """End everything that dead managers left in this state folder. What was found; a record stays as long as something
    of its server does."""
    found = leftovers(state_dir)
    for leftover in found:
        leftover.end()
    for torn in (state_dir / "servers").glob(".*"):  # its writer was killed while it wrote
        with contextlib.suppress(OSError):
            if time.time() - torn.stat().st_mtime > TORN_AFTER:
                torn.unlink()
    return found


def boot_id() -> str:
    """The kernel's name for the time since it was started (random(4)); empty if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """The namespace of our pids (pid_namespaces(7)); empty if it cannot be known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_time(pid: int) -> int:
    """Clock ticks from boot to a process's start (proc(5), field 22 of stat), or 0 if it is dead or a zombie."""
    stat = stat_of(pid)
    return 0 if stat is None or stat[0] in (b"Z", b"X") else int(stat[2])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that has this pid and this start time is alive."""
    return started != 0 and start_time(pid) == started


def session_of(pid: int) -> int:
    """The session of a process, or 0 if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


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
