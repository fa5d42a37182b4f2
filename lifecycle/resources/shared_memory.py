"""Shared memory that a server's tree made, noted while the tree lives and removed when it has gone.

POSIX shared memory and named semaphores are files right in /dev/shm (shm_overview(7), sem_overview(7)). Whoever makes
one removes it; a process that is killed does not. A file counts as the tree's if it is made while the tree lives and
is found mapped by a process of the tree, shared and writable, by the first looks after it was made. inotify(7) tells
when to look, so that what a process has is known although it is killed without warning. A plain file that a server
keeps there for later is mapped by nobody in that way, and stays.

A semaphore is made under another name than it gets, and mappings show the first one: files are known by their inodes.
The notes are written down as well, for whoever cleans up after a keeper that was killed.

Part of the keeper: standard library only, and of that only what is cheap.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import stat
import time

try:
    from lifecycle.resources.tree import attempt, descendants
except ImportError:  # in a keeper, which has this folder on its path and nothing else
    from tree import attempt, descendants  # type: ignore[import-not-found,no-redef]

TYPE_CHECKING = False  # as in `typing`, which would cost a keeper 1 MiB
if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = os.path.realpath("/dev/shm")
IN_CREATE, IN_MOVED_TO = 0x100, 0x80  # linux/inotify.h
NEVER = float("inf")
SHARE = 20
"""A look that took so long is followed by another one no sooner than so many times as long: 5 % of a core at most."""
SOON, SELDOM = 0.001, 60.0
"""Seconds to the next look at files of which the last one could not say whose they are: at first, doubled up to."""
BLIND = 1.0
"""Seconds between looks where inotify cannot be had (its instances are limited for each user)."""
PATIENCE, PAUSE = 10, 0.01
"""So many tries, so many seconds apart, to find a file let go: the kernel may give up its files after a process."""


def device() -> int:
    """Which file system /dev/shm is; -1 if there is none."""
    try:
        return os.stat(FOLDER).st_dev
    except OSError:
        return -1


def present() -> dict[int, str]:
    """What is in /dev/shm now: inode and name."""
    try:
        with os.scandir(FOLDER) as inside:
            return {entry.inode(): entry.name for entry in inside}
    except OSError:
        return {}


def used_by(pids: Iterable[int | str], device: int) -> tuple[set[int], set[int]]:
    """Inodes of files of /dev/shm that processes share (mapped, writable), and of those that they merely have open or
    read. Nothing is known of other users' processes."""
    shared: set[int] = set()
    others: set[int] = set()
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):  # before the mappings: what is mapped may be closed then
                path = f"/proc/{pid}/fd/{fd}"
                if os.readlink(path).startswith(FOLDER + "/"):
                    found = os.stat(path)
                    if found.st_dev == device:
                        others.add(found.st_ino)
        except OSError:
            pass  # gone, or another user's
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                maps = file.read()
        except OSError:
            continue
        place = maps.find(f" {FOLDER}/".encode())
        while place >= 0:
            line = maps[maps.rfind(b"\n", 0, place) + 1 : place].split()
            major, _, minor = line[3].partition(b":")
            if os.makedev(int(major, 16), int(minor, 16)) == device:
                (shared if line[1].startswith(b"rw") and line[1].endswith(b"s") else others).add(int(line[4]))
            place = maps.find(f" {FOLDER}/".encode(), place + 1)
    return shared, others - shared


class Notes:
    """Which files of /dev/shm a tree has made, in memory and in a file.

    Args:
        path: the file, which is made if it is not there and otherwise gone on with.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.device = device()
        self.made: set[int] = set()
        self.before: set[int] | None = None
        """What was there before the tree was."""
        for word, *values in self.lines():
            if word == "before" and values[0] == str(self.device):
                self.before = {int(value) for value in values[1:]}
            elif word == "made" and self.before is not None:
                self.made |= {int(value) for value in values}

    def lines(self) -> list[list[str]]:
        try:
            with open(self.path, encoding="ascii", errors="replace") as file:
                return [line.split() for line in file if line.endswith("\n") and line.split()[1:]]
        except OSError:
            return []

    def begin(self) -> None:
        """The tree is about to be started."""
        self.before = set(present())
        self.write("before", [self.device, *self.before])

    def add(self, inodes: set[int]) -> None:
        if inodes - self.made:
            self.write("made", inodes - self.made)
            self.made |= inodes

    def write(self, word: str, values: Iterable[int]) -> None:
        attempt(self.append, f"{' '.join((word, *map(str, values)))}\n".encode())

    def append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def look(self, pids: Iterable[int]) -> None:
        """Note what these processes, all of the tree, share now."""
        if self.before is not None and (new := set(present()) - self.before - self.made):
            self.add(new & used_by(pids, self.device)[0])

    def left(self) -> list[str]:
        """Paths of noted files that are still there."""
        return [f"{FOLDER}/{name}" for inode, name in present().items() if inode in self.made]

    def remove(self) -> None:
        """The tree has gone: remove what it made and nobody uses, then the notes."""
        remove(self.made, self.device)
        attempt(os.unlink, self.path)


class Watch:
    """A keeper's eye on what its descendants make in /dev/shm."""

    def __init__(self, path: str) -> None:
        self.notes = Notes(path)
        self.fd = notifier()
        """Readable when a file has been made there; -1: nothing tells."""
        self.due = BLIND + time.monotonic() if self.fd < 0 else NEVER
        """When to look next, on the monotonic clock."""
        self.not_before = 0.0
        self.pause = SOON
        self.others: set[int] = set()
        self.missed: set[int] = set()
        self.opened: set[int] = set()
        self.notes.begin()

    def woken(self) -> None:
        """Something has been made: it is time to look."""
        attempt(os.read, self.fd, 65536)
        self.pause = SOON
        self.due = self.not_before

    def look(self) -> None:
        """Find out which new files processes of the tree have made. Costs next to nothing if there are none."""
        notes, began = self.notes, time.monotonic()
        there = set(present())
        self.others &= there
        new = there - (notes.before or set()) - notes.made - self.others
        self.opened = set()
        if new:
            shared, others = used_by(descendants(os.getpid()), notes.device)
            notes.add(new & shared)
            new -= shared
            self.opened = new & others
            # Twice, since a process whose parent ends just then may be missed once.
            self.others |= (new - others) & self.missed
            self.missed = new - others - self.others
        now = time.monotonic()
        self.not_before = now + SHARE * (now - began)
        self.due = NEVER if self.fd >= 0 else now + BLIND
        if self.opened or self.missed:
            self.due = min(self.due, max(self.not_before, now + self.pause))
            self.pause = min(2 * self.pause, SELDOM)

    def remove(self) -> None:
        """The tree has gone: remove what it made, and what its processes were about to make."""
        remove(self.opened, self.notes.device, empty=True)
        self.notes.remove()


def notifier() -> int:
    """A descriptor that can be read when something has been made in /dev/shm; -1 if that cannot be had."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(FOLDER), IN_CREATE | IN_MOVED_TO) < 0:
            os.close(fd)
            return -1
    except AttributeError:
        return -1
    return fd


def remove(inodes: set[int], device: int, empty: bool = False) -> None:
    """Remove these files if they are this user's and no process has them open or mapped; if `empty`, only those that
    have nothing in them."""
    for again in range(PATIENCE):
        held = False
        for inode, name in present().items():
            if inode in inodes and not discard(f"{FOLDER}/{name}", inode, device, empty):
                held = True
        if not held:
            return
        if again < PATIENCE - 1:
            time.sleep(PAUSE)


def discard(path: str, inode: int, device: int, empty: bool) -> bool:
    """False if the file is in use: it may be let go yet."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        found = os.fstat(file)
        ours = (found.st_dev, found.st_ino, found.st_uid) == (device, inode, os.geteuid())
        if not ours or not stat.S_ISREG(found.st_mode) or (empty and found.st_blocks):
            return True
        if not is_free(file, inode, device):
            return False
        attempt(os.unlink, path)
        return True
    finally:
        os.close(file)


def is_free(file: int, inode: int, device: int) -> bool:
    """Whether nobody but us has this file open or mapped. The kernel knows, of all users and in all containers: a write
    lease (fcntl(2), F_SETLEASE) is granted then alone. It is kept until the file is closed."""
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # if the lease is broken; by default SIGIO, which would end us
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
    me = str(os.getpid())
    shared, others = used_by((name for name in os.listdir("/proc") if name.isdigit() and name != me), device)
    return inode not in shared | others
