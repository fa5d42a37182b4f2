"""One builds a compile cache, the others wait; when it is complete, nobody waits any more."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from lifecycle.adapter import CompileCache
from lifecycle.host import Holder
from lifecycle.resources import caches
from lifecycle.resources.caches import Builder, CacheUnusable
from lifecycle.resources.locks import LEASE, Lease, Locks

FIRST_LOOK, LONGEST_LOOK = 0.02, 0.4
"""Seconds between two looks at a cache that somebody else builds; the first grows to the second. A look costs 1 ms."""
NAMELESS = 1.0
"""Seconds for which a builder may hold the lock and not have said who it is, before waiters say that they wait."""
FLEETING = frozenset((errno.ESTALE, errno.ENOENT, errno.EEXIST))
"""Errors that pass: stale handles (NFS: what was open has been replaced on another host; opened anew it will do), and a
folder that went because its builder left it empty, or because somebody cleared it, between two steps of a look
(then Python's `mkdir` says EEXIST)."""
STALE_LOOKS = 20
"""Looks in a row that may find such errors before they count: some seconds."""


class Held:
    """The right to build a cache. Implements `lifecycle.host.CompileLock`."""

    def __init__(self, cache: CompileCache, entry: Path, setting: str, builder: Builder, locks: Locks) -> None:
        self._cache = cache
        self._entry = entry
        self._setting = setting
        self._builder = builder
        self._locks = locks
        self._released = False

    @property
    def lost(self) -> str:
        """Why the right is held no longer, although it was not given back: only a lease can be lost, by a process that
        was stopped for longer than it lasts. Empty if it is held."""
        return self._locks.lost

    def complete(self) -> None:
        """See `lifecycle.host.CompileLock`. Raises `CacheUnusable`, with the right given back, if the mark cannot be
        written or the right was lost: another one builds then, and says itself when it is done."""
        if self._released:
            return
        try:
            if self.lost:
                raise CacheUnusable(f"{self._entry}: the lease was lost ({self.lost}) while the cache was built")
            caches.complete(self._cache, self._entry)
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise caches.unusable(error, self._entry, self._setting) from None
            raise

    def release(self) -> None:
        """See `lifecycle.host.CompileLock`."""
        if not self._released:
            self._released = True
            caches.end(self._entry, self._builder)
            if not self.lost:
                caches.drop_empty(self._entry)  # with the lock: who waits for this one then makes it anew
            self._locks.free()


@dataclass(frozen=True)
class Waiting:
    """Somebody else builds the cache."""

    holder: Holder | None
    """None: it has not said yet who it is."""


@dataclass(frozen=True)
class Complete:
    """Nobody need build the cache."""


class Contender:
    """One that would build a cache. `look` blocks as long as the file system takes, so it is called in a thread. Who
    leaves that thread alone calls `give_up`, and then nothing stays held, whenever the thread ends."""

    def __init__(self, cache: CompileCache, state_dir: Path, lease: Lease = LEASE) -> None:
        self._cache = cache
        self._entry = cache.entry(state_dir)
        self._setting = "cache_dir" if cache.root is not None else "state_dir"
        self._terms = lease
        self._locks: Locks | None = None
        self._stale = 0
        self._guard = threading.Lock()
        self._given_up = False
        self._held: Held | None = None

    def look(self) -> Held | Waiting | Complete:
        """Take the lock if the cache is not complete and nobody builds it. Raises `CacheUnusable`."""
        try:
            found = self._look()
        except OSError as error:
            self._stale = self._stale + 1 if error.errno in FLEETING else STALE_LOOKS
            if self._stale < STALE_LOOKS:
                return Waiting(None)
            raise caches.unusable(error, self._entry, self._setting) from None
        self._stale = 0
        if isinstance(found, Held):
            with self._guard:
                self._held = found
                if self._given_up:
                    found.release()
        return found

    def give_up(self) -> None:
        """Hold nothing, now and when a `look` that is still going on ends."""
        with self._guard:
            self._given_up = True
            if self._held is not None:
                self._held.release()

    def notes(self) -> list[str]:
        """What people should know of how this cache is locked, once."""
        notes: list[str] = []
        if self._locks is not None:
            notes, self._locks.notes = self._locks.notes, notes
        return notes

    def _look(self) -> Held | Waiting | Complete:
        caches.check_owner(self._entry, self._setting)
        if caches.is_complete(self._cache, self._entry):
            return Complete()
        self._entry.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._locks is None:
            self._locks = Locks(self._entry, self._setting, self._terms)
        locks = self._locks
        if not locks.take():
            return Waiting(self._holder())
        found: Held | Waiting | Complete | None = None
        try:
            found = self._look_again(locks)
        finally:
            if not isinstance(found, Held):
                locks.free()
        return found

    def _look_again(self, locks: Locks) -> Held | Waiting | Complete:
        """With the lock."""
        if caches.is_complete(self._cache, self._entry):  # completed between the look and the lock
            return Complete()
        before = caches.builder_of(self._entry)
        if before is not None and before.alive and before.pid != os.getpid():
            return Waiting(before.holder)  # it holds a lock that excludes nobody, and so do we
        return Held(self._cache, self._entry, self._setting, caches.begin(self._cache, self._entry), locks)

    def _holder(self) -> Holder | None:
        builder = caches.builder_of(self._entry)
        return builder.holder if builder is not None and not builder.dead else None


async def acquire(
    cache: CompileCache,
    state_dir: Path,
    *,
    waiting: Callable[[Holder | None], None] = lambda holder: None,
    note: Callable[[str], None] = lambda text: None,
    lease: Lease = LEASE,
) -> Held | None:
    """Wait for the right to build a cache; None as soon as the cache is complete.

    Can be cancelled at any moment and then holds nothing. There is no deadline but the caller's.

    Args:
        state_dir: where the lock and the mark lie of a cache that has no root.
        waiting: told who builds the cache, again when that changes; None if the builder has not said who it is.
        note: told what people should know of how the cache is locked: a fall-back, a network file system.
        lease: see `Lease`; other values than the default are for tests.

    Raises `CacheUnusable` if the folder cannot be used: no room, no right to write, another user's.
    """
    contender = Contender(cache, state_dir, lease)
    alone = anyio.CapacityLimiter(1)  # the common one may be full of threads that hang on a file system
    began, told, wait = anyio.current_time(), False, FIRST_LOOK
    last: Holder | None = None
    try:
        while True:
            found = await anyio.to_thread.run_sync(contender.look, abandon_on_cancel=True, limiter=alone)
            for text in contender.notes():
                note(text)
            if isinstance(found, Held):
                return found
            if isinstance(found, Complete):
                return None
            nameless = found.holder is None and not told and anyio.current_time() - began >= NAMELESS
            if nameless or (found.holder is not None and found.holder != last):
                told, last = True, found.holder
                waiting(found.holder)
            await anyio.sleep(wait)
            wait = min(LONGEST_LOOK, wait * 1.5)
    except BaseException:
        contender.give_up()
        raise


def holder(cache: CompileCache, state_dir: Path) -> Holder | None:
    """Who builds a cache now, if anybody does. Of one on another host, its word is taken."""
    with suppress(OSError):
        builder = caches.builder_of(cache.entry(state_dir))
        if builder is not None and not builder.dead:
            return builder.holder
    return None


def void(cache: CompileCache, state_dir: Path) -> None:
    """A cache has proved to be broken: take its mark away, and its files out of everybody's sight. Without a mark there
    is nothing to do: files of a cache that is not complete are removed before it is built. Raises `CacheUnusable`."""
    entry = cache.entry(state_dir)
    try:
        if caches.mark_of(entry) is not None:
            caches.put_away(entry)
            (entry / caches.MARK).unlink(missing_ok=True)
    except OSError as error:
        raise caches.unusable(error, entry, "cache_dir" if cache.root is not None else "state_dir") from None
