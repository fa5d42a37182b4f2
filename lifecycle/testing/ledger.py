"""Who held what, from when to when."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio


@dataclass(eq=False)
class Hold:
    """One thing that was held: a lock, the lease of a port, the socket that holds it, a process tree."""

    kind: str
    """lock, lease, socket or process."""
    name: str
    since: float
    """Virtual time."""
    began: int
    """Counts beginnings and ends in this ledger: things that happen at one time are still in order."""
    until: float | None = None
    ended: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass
class Ledger:
    """What a simulated host knows of everything that was ever held."""

    holds: list[Hold] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """What should never have happened: a port released under a living process, a lock released before its process has
    gone, a request that reached a server which was not ready."""
    _count: int = 0

    def begin(self, kind: str, name: str) -> Hold:
        self._count += 1
        hold = Hold(kind, name, anyio.current_time(), self._count)
        self.holds.append(hold)
        return hold

    def end(self, hold: Hold) -> None:
        """Idempotent."""
        if hold.ended is None:
            self._count += 1
            hold.until, hold.ended = anyio.current_time(), self._count

    def open(self, kind: str | None = None) -> tuple[Hold, ...]:
        """What is held now."""
        return tuple(hold for hold in self.holds if hold.ended is None and kind in (None, hold.kind))
