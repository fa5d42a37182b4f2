"""What excludes other builders of a compile cache: two locks of filelock's.

- `flock` on the file `lock`. The kernel lets go of it when its holder dies, however it dies.
- A lease, the file `lease`, which its holder touches from a thread of its own as long as it lives. One that is touched
  no longer is taken over: at once if its holder can be seen to be dead, else (another host) after `Lease.duration`.

On a local file system `flock` alone is taken. On a network file system it may be missing, or exclude this host only
(`nolock`, `localflock`), and nothing tells which: so both are taken. Where `flock` is missing, the lease alone is.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, LeaseSettingsMismatch, SoftFileLease, Timeout

from lifecycle.resources import caches
from lifecycle.resources.caches import CacheUnusable
from lifecycle.resources.mounts import network_mount_of

UNSUPPORTED = frozenset((errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP))


@dataclass(frozen=True)
class Lease:
    """When a lease counts as given up. The same for all who build one cache, else filelock refuses it."""

    duration: float = 60.0
    """Seconds without a heartbeat. Far above the time for which NFS may show an old heartbeat (nfs(5), acregmin)."""
    heartbeat: float = 10.0
    """Seconds between two heartbeats."""


LEASE = Lease()
RISKY = "engines have failed on caches there, with stale handles, and a cache_dir on a local disk is safer"
"""Triton's and PyTorch's caches in NFS homes, https://github.com/pytorch/pytorch/issues/173679."""


class Locks:
    """The two locks of one cache, as one. Blocking only as long as the file system takes."""

    def __init__(self, entry: Path, setting: str, lease: Lease = LEASE) -> None:
        self._entry = entry
        self._setting = setting
        self._terms = lease
        self._flock: FileLock | None = FileLock(
            entry / caches.LOCK, mode=0o600, thread_local=False, fallback_to_soft=False, preserve_lock_file=True
        )
        self._lease: SoftFileLease | None = None
        self._empty: tuple[tuple[int, int], float] | None = None
        self.notes: list[str] = []
        """What people should know of how this cache is locked; whoever tells them takes it out."""
        network = network_mount_of(entry)
        if network is not None:
            self.notes.append(
                f"{entry} is on a network file system ({network}), where locks may exclude this host only: a lease is "
                "taken as well" + (f"; {RISKY}" if setting == "cache_dir" else "")
            )
            self._take_lease_too()

    @property
    def leased(self) -> bool:
        """A lease is part of the lock."""
        return self._lease is not None

    @property
    def lost(self) -> str:
        """Why a lease that was held is held no longer; empty if it is."""
        compromise = self._lease.compromise if self._lease is not None else None
        return compromise.reason if compromise is not None else ""

    def take(self) -> bool:
        """Take both, or none and return False if somebody has one. Raises `CacheUnusable`, `OSError`."""
        if not self._take_flock():
            return False
        taken = False
        try:
            taken = self._lease is None or self._take_lease(self._lease)
        finally:
            if not taken:
                self.free()
        return taken

    def free(self) -> None:
        """Give back what is held. Never raises: a lock that cannot be given back ends with the process."""
        for lock in (self._lease, self._flock):
            if lock is not None and lock.is_locked:
                with suppress(OSError):
                    lock.release(force=True)

    def _take_flock(self) -> bool:
        if self._flock is None:
            return True
        with self._at_its_place() as still_there:
            try:
                self._flock.acquire(blocking=False)
            except Timeout:
                return False
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                self._flock = None
                self._take_lease_too()
                self.notes.append(
                    f"the file system of {self._entry} has no flock ({error.strerror}): a lease with a heartbeat takes "
                    f"its place; a builder that dies on another host is noticed after {self._terms.duration:g} s"
                )
                return True
            there = False
            try:
                there = still_there()
            finally:
                if not there:
                    self.free()
            return there

    @contextmanager
    def _at_its_place(self) -> Iterator[Callable[[], bool]]:
        """Tells later whether the lock's file has been the same one since. A builder that is killed between renaming
        the folder away and removing it leaves the lock of the old file to whoever has opened that before; another one
        may have locked a new file by then. filelock sees only that a file was removed."""
        path = self._entry / caches.LOCK
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield lambda: os.path.samestat(os.fstat(file), os.stat(path))
        finally:
            os.close(file)

    def _take_lease_too(self) -> None:
        if self._lease is None:
            self._lease = SoftFileLease(
                self._entry / caches.LEASE, mode=0o600, thread_local=False,
                lease_duration=self._terms.duration, heartbeat_interval=self._terms.heartbeat,
            )  # fmt: skip

    def _take_lease(self, lease: SoftFileLease) -> bool:
        try:
            lease.acquire(blocking=False)
        except Timeout:
            return self._break_empty(lease) and self._take_lease(lease)
        except LeaseSettingsMismatch as error:
            raise CacheUnusable(f"another version of Stoker builds there: {error}") from None
        return True

    def _break_empty(self, lease: SoftFileLease) -> bool:
        """Remove a lease that has been empty for as long as one lasts; whether that was so. filelock never takes over
        an empty one, which its versions before 3.22 wrote. Here it is what a holder left that was killed between making
        the file and writing to it."""
        with suppress(OSError):
            found = os.stat(lease.lock_file)
            seen = (found.st_ino, found.st_mtime_ns)
            now = time.monotonic()
            if found.st_size:
                self._empty = None
            elif self._empty is None or self._empty[0] != seen:
                self._empty = (seen, now)
            elif now - self._empty[1] >= self._terms.duration:
                lease.break_lock()
                self._empty = None
                return True
        return False
