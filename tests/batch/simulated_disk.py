"""A disk in memory that can stop, fill up, fail or lose power at every single operation.

What the system sees (`Node.seen`) and what is on the disk (`Node.stored`) are apart. The death of the process leaves
what is seen. A power cut leaves, of the changes that were not synced, any: each write whole, torn, as zeros, as noise
or not at all, in any combination; each change of a folder or not, in any combination. Harder than file systems are,
which keep some order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from lifecycle.batch.store.disk import File, Kind
from lifecycle.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Crash(BaseException):
    """The process is dead: whatever it tries to do afterwards comes to nothing."""


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


@dataclass
class Node:
    """A file."""

    seen: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, data) of each write, (size, None) of each truncation, since the last sync."""

    def change(self, offset: int, data: bytes | None) -> None:
        _apply(self.seen, offset, data)
        self.waiting.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.waiting:
            _apply(self.stored, offset, data)
        self.waiting.clear()

    def fail_to_sync(self) -> None:
        """As Linux does it: what could not be written is taken for written from now on, and never is."""
        self.waiting.clear()

    def lose_power(self, random: Random) -> None:
        for offset, data in self.waiting:
            luck = random.random()
            if luck < 0.3:
                continue
            if data is not None and luck < 0.7:
                torn = data[: random.randrange(len(data) + 1)]
                data = random.choice((torn, torn, bytes(len(data)), random.randbytes(len(data))))
            _apply(self.stored, offset, data)
        self.waiting.clear()
        self.seen = bytearray(self.stored)


@dataclass
class Folder:
    seen: dict[str, Node] = field(default_factory=dict)
    stored: dict[str, Node] = field(default_factory=dict)
    waiting: list[Callable[[dict[str, Node]], None]] = field(default_factory=list)


class SimulatedDisk:
    """`lifecycle.batch.store.disk.Disk`, with one lock."""

    def __init__(self) -> None:
        self.operations: list[str] = []
        """Those that change the disk, so far."""
        self.crash_at: int | None = None
        """Which of them is the process's last, counted from 1; half of it happens if it is a write."""
        self.fail_at: tuple[int, int] | None = None
        """(which, errno): this one fails."""
        self.full_from: int | None = None
        """From this one on nothing more can be written: half of the first write is."""
        self.meanwhile: Callable[[], None] | None = None
        """What another thread does just before each sync."""
        self.locked = False
        self._folders: dict[Path, Folder] = {Path("/"): Folder()}
        self._new_folders: set[Path] = set()
        self._life = 0

    # The disk

    def resolve(self, path: Path) -> Path:
        return path

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        names = self._folder(path.parent).seen
        if path.name not in names:
            if not create:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.begin("create")
            node = Node()
            self._change(path.parent, lambda names: names.__setitem__(path.name, node))
        return SimulatedFile(self, names[path.name], self._life)

    def kind(self, path: Path) -> Kind:
        if path in self._folders:
            return "folder"
        parent = self._folders.get(path.parent)
        return "file" if parent is not None and path.name in parent.seen else "nothing"

    def size(self, path: Path) -> int | None:
        self.alive(self._life)
        node = self._folder(path.parent).seen.get(path.name)
        return None if node is None else len(node.seen)

    def names(self, folder: Path) -> list[str]:
        self.alive(self._life)
        inner = [each.name for each in self._folders if each.parent == folder and each != folder]
        return [*self._folder(folder).seen, *inner]

    def mkdir(self, path: Path) -> None:
        self.begin("mkdir")
        self._folders[path] = Folder()
        self._new_folders.add(path)

    def rmdir(self, path: Path) -> None:
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self.begin("rmdir")
        del self._folders[path]
        self._new_folders.discard(path)

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        node = self._folder(old.parent).seen.get(old.name)
        if node is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        self.begin("rename")

        def change(names: dict[str, Node]) -> None:
            names[new.name] = node
            if names.get(old.name) is node:
                del names[old.name]

        self._change(old.parent, change)

    def unlink(self, path: Path) -> None:
        node = self._folder(path.parent).seen.get(path.name)
        if node is None:
            return
        self.begin("unlink")

        def change(names: dict[str, Node]) -> None:
            if names.get(path.name) is node:
                del names[path.name]

        self._change(path.parent, change)

    def fsync_folder(self, path: Path) -> None:
        folder = self._folder(path)
        self.begin("fsync folder")
        folder.stored = dict(folder.seen)
        folder.waiting.clear()
        self._new_folders -= {each for each in self._new_folders if each.parent == path}

    def lock(self, folder: Path, output: Path) -> HeldLock:
        if self.locked:
            raise OutputError(f"output {output} is being written by another run")
        self.locked = True
        return HeldLock(self)

    # What happens to it

    def begin(self, what: str) -> None:
        """An operation that changes the disk begins. Raises if it does not come to its end."""
        self.alive(self._life)
        if self.meanwhile is not None and what in ("fsync", "fsync folder"):
            self.meanwhile()
        self.operations.append(what)
        count = len(self.operations)
        if count == self.crash_at:
            raise Crash
        if self.fail_at is not None and count == self.fail_at[0]:
            raise OSError(self.fail_at[1], os.strerror(self.fail_at[1]))
        if self.full_from is not None and count >= self.full_from and what in ("write", "create", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def alive(self, life: int) -> None:
        if self._life != life or (self.crash_at is not None and len(self.operations) >= self.crash_at):
            raise Crash

    def kill(self) -> None:
        """The process dies; the system goes on."""
        self._restart()

    def cut_power(self, random: Random) -> None:
        """The system dies with all that was not synced, or any part of it."""
        lost = {path for path in self._new_folders if random.random() < 0.5}
        for path in list(self._folders):
            if any(each in lost for each in (path, *path.parents)):
                del self._folders[path]
        for folder in self._folders.values():
            for change in folder.waiting:
                if random.random() < 0.6:
                    change(folder.stored)
        nodes = {id(node): node for folder in self._folders.values() for node in folder.stored.values()}
        for node in nodes.values():
            node.lose_power(random)
        for folder in self._folders.values():
            folder.seen = dict(folder.stored)
            folder.waiting.clear()
        self._new_folders.clear()
        self._restart()

    def _restart(self) -> None:
        self._life += 1
        self.locked = False
        self.crash_at = None
        self.fail_at = None
        self.full_from = None
        self.meanwhile = None

    def _folder(self, path: Path) -> Folder:
        self.alive(self._life)
        if path not in self._folders:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._folders[path]

    def _change(self, path: Path, change: Callable[[dict[str, Node]], None]) -> None:
        folder = self._folders[path]
        change(folder.seen)
        folder.waiting.append(change)


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, node: Node, life: int) -> None:
        self._disk = disk
        self._node = node
        self._life = life

    def write(self, data: ReadableBuffer, offset: int) -> None:
        self._disk.alive(self._life)
        whole = bytes(data)
        try:
            self._disk.begin("write")
        except (Crash, OSError):
            self._node.change(offset, whole[: len(whole) // 2])
            raise
        self._node.change(offset, whole)

    def read(self, size: int, offset: int) -> bytes:
        self._disk.alive(self._life)
        return bytes(self._node.seen[offset : offset + size])

    def truncate(self, size: int) -> None:
        self._disk.alive(self._life)
        if size != len(self._node.seen):
            self._disk.begin("truncate")
            self._node.change(size, None)

    def size(self) -> int:
        self._disk.alive(self._life)
        return len(self._node.seen)

    def fsync(self) -> None:
        self._disk.alive(self._life)
        try:
            self._disk.begin("fsync")
        except OSError:
            self._node.fail_to_sync()
            raise
        self._node.sync()

    def close(self) -> None:
        pass


class HeldLock:
    lost = ""  # never

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def free(self) -> None:
        self._disk.locked = False
