"""Locks of compile caches on a file system that is not there, under the real `lifecycle.resources.compile_lock`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

import anyio

from lifecycle.resources.locks import LEASE, Lease
from lifecycle.testing import Hold, Ledger


class Owner(Protocol):
    """Who holds a lock."""

    @property
    def dead(self) -> bool: ...


OWNER: ContextVar[Owner] = ContextVar("OWNER")
"""Whose code runs now."""


class LockService:
    """What excludes builders from each other: at most one holder of an entry, whatever becomes of the others."""

    def __init__(
        self, ledger: Ledger, *, flock: bool, one_host: bool, fails: Callable[[], bool], pick: Callable[[int], int]
    ) -> None:
        self.ledger = ledger
        self.flock = flock
        self.one_host = one_host
        self.fails = fails
        self.pick = pick
        self.holders: dict[Path, SimulatedLocks] = {}

    def make(self, entry: Path, setting: str, lease: Lease = LEASE) -> SimulatedLocks:
        """In the place of `lifecycle.resources.locks.Locks`."""
        return SimulatedLocks(self, entry, lease, OWNER.get())

    def died(self, owner: Owner) -> None:
        """A holder is dead: the kernel frees what is flocked; a lease runs on until it is seen or found to be old."""
        for lock in [each for each in self.holders.values() if each.owner is owner]:
            if self.flock or self.one_host:
                lock.end()
            else:
                lock.stale_from = anyio.current_time() + lock.terms.duration

    def lose_one(self) -> None:
        """Somebody was stopped for longer than its lease lasts."""
        living = [each for each in self.holders.values() if not each.owner.dead]
        if living and not self.flock:
            lost = living[self.pick(len(living))]
            lost.end()
            lost.lost = "it was not renewed"

    def living(self) -> list[SimulatedLocks]:
        """Who holds something and lives."""
        return [each for each in self.holders.values() if not each.owner.dead]


class SimulatedLocks:
    """Has the methods of `lifecycle.resources.locks.Locks`."""

    def __init__(self, service: LockService, entry: Path, terms: Lease, owner: Owner) -> None:
        self.owner = owner
        self.entry = entry
        self.terms = terms
        self.stale_from: float | None = None
        self.lost = ""
        self.notes: list[str] = [] if service.flock else [f"the file system of {entry} has no flock"]
        self._service = service
        self._hold: Hold | None = None

    @property
    def leased(self) -> bool:
        return not self._service.flock

    def take(self) -> bool:
        service = self._service
        if self.owner.dead:
            return False
        if service.fails():
            which = (errno.ESTALE, errno.ESTALE, errno.ENOENT, errno.ENOSPC)[service.pick(4)]
            raise OSError(which, "a simulated fault")
        other = service.holders.get(self.entry)
        if other is not None and other.stale_from is not None and anyio.current_time() >= other.stale_from:
            other.end()
            other = None
        if other is not None:
            return False
        self.lost = ""
        service.holders[self.entry] = self
        self._hold = service.ledger.begin("lock", self.entry.name)
        return True

    def free(self) -> None:
        if not self.owner.dead:
            self.end()

    def end(self) -> None:
        if self._hold is not None:
            self._service.ledger.end(self._hold)
            self._hold = None
            if self._service.holders.get(self.entry) is self:
                del self._service.holders[self.entry]
