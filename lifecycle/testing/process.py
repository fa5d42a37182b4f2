"""A server process that is not there: what it does is a `Life`, and a test may interfere at any moment."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import anyio

from lifecycle.diagnosis import Exit
from lifecycle.host import Keepsake


@dataclass(frozen=True)
class Life:
    """What one attempt of a simulated server does. Times are virtual seconds since its launch; None is never."""

    listens: float | None = 0.0
    ready: float | None = 0.1
    exits: float | None = None
    code: int = 1
    """Its exit code if it exits by itself."""
    says: tuple[tuple[float, str], ...] = ()
    """Log lines, each with its time."""
    term: float | None = 0.0
    """Seconds from SIGTERM to its end; None: it ignores SIGTERM."""
    kill: float = 0.0
    """Seconds from SIGKILL to the end of its tree."""
    orphans: bool = False
    """Its children live on when the main process has ended, until the tree is ended."""
    deaf: float | None = None
    """From then on it takes connections and answers nothing."""
    wedged: float | None = None
    """From then on it answers GET, and generates nothing."""
    tells_load: bool = False
    """`/load` tells how many requests it works on, and a counter of the steps of its loop."""
    stands: float | None = None
    """From then on its loop, and so its counter, stands still."""
    dead: float | None = None
    """From then on every GET is answered with 503, as by an API process whose engine has died."""
    status: int = 200
    """HTTP status of every answer once it is ready. 401: wrong key."""
    model: str = ""
    """The model that it names. "": the one that it was configured with."""
    stolen: bool = False
    """Somebody else listens on its port, ready at once, and the server itself never does."""
    reply: float = 0.0
    """Seconds that a request takes, if it comes through `SimulatedHost.transport`."""


class SimulatedProcess:
    """Implements `lifecycle.host.Process` on virtual time. The methods that are not in that protocol make things happen
    now, whatever its `Life` says."""

    def __init__(
        self, pid: int, log: Path, life: Life, port: int | None, met: Callable[[str], Awaitable[None]]
    ) -> None:
        self.pid = pid
        self.log = log
        self.life = life
        self.port = port
        self.launched_at = anyio.current_time()
        self.signals: list[tuple[float, str]] = []
        """SIGTERM and SIGKILL, when they came."""
        self._met = met
        self._listens_at = self._at(life.listens)
        self._ready_at = self._at(life.ready)
        self._deaf_at = self._at(life.deaf)
        self._wedged_at = self._at(life.wedged)
        self._stands_at = self._at(life.stands)
        self._dead_at = self._at(life.dead)
        self.others = 0
        """Requests of other clients that it works on."""
        self.others_answered = 0
        """Requests of other clients that it has answered."""
        self.asleep = False
        self.kept: tuple[Keepsake, float] | None = None
        """What its keeper was told to do, should the manager die."""
        self.posted: list[str] = []
        """Paths to which a prober has POSTed."""
        self._exits_at = self._at(life.exits)
        self._code = life.code
        self._gone_at = inf if life.orphans else self._exits_at
        self._lines = sorted(((self._at(at), line) for at, line in life.says), key=lambda pair: pair[0])
        self._changed = anyio.Event()

    def _at(self, seconds: float | None) -> float:
        return inf if seconds is None else self.launched_at + seconds

    async def exited(self) -> Exit:
        """See `lifecycle.host.Process`."""
        await self._met("exited")
        await self.until(lambda: self._exits_at)
        return Exit(self._code)

    async def end(self, grace: float) -> None:
        """See `lifecycle.host.Process`."""
        await self._met("end")
        now = anyio.current_time()
        kill_at = now
        if grace > 0 and self.running:
            self.signals.append((now, "SIGTERM"))
            kill_at = now + grace
            self._end_main(now + (inf if self.life.term is None else self.life.term), 0)
        self._sweep(kill_at)
        await self.gone()

    def _sweep(self, kill_at: float) -> None:
        """SIGKILL to the tree when the main process has ended, or at `kill_at`."""
        if self._exits_at >= kill_at + self.life.kill:
            self.signals.append((kill_at, "SIGKILL"))
            self._end_main(kill_at + self.life.kill, -signal.SIGKILL)
        self._gone_at = min(self._gone_at, max(anyio.current_time(), self._exits_at))
        self._change()

    def _end_main(self, at: float, code: int) -> None:
        if at < self._exits_at:
            self._exits_at, self._code = at, code
            self._gone_at = min(self._gone_at, inf if self.life.orphans else at)

    async def lines(self) -> AsyncIterator[str]:
        """See `lifecycle.host.Process`."""
        given = 0
        while True:
            while given < len(self._lines) and self._lines[given][0] <= anyio.current_time():
                given += 1
                yield self._lines[given - 1][1]
            if not self.alive:
                return
            await self.change(self._lines[given][0] if given < len(self._lines) else inf)

    def pids(self) -> frozenset[int]:
        """See `lifecycle.host.Process`."""
        return frozenset((self.pid,)) if self.alive else frozenset()

    def tail(self, count: int) -> list[str]:
        """See `lifecycle.host.Process`."""
        said = [line for at, line in self._lines if at <= anyio.current_time()]
        return said[-count:]

    @property
    def running(self) -> bool:
        """Whether the main process has not ended."""
        return anyio.current_time() < self._exits_at

    @property
    def alive(self) -> bool:
        """Whether anything of the tree is left."""
        return anyio.current_time() < self._gone_at

    @property
    def listening(self) -> bool:
        return self.life.stolen or (self.running and anyio.current_time() >= self._listens_at)

    @property
    def ready(self) -> bool:
        return self.listening and (self.life.stolen or anyio.current_time() >= self._ready_at)

    @property
    def deaf(self) -> bool:
        return anyio.current_time() >= self._deaf_at

    @property
    def wedged(self) -> bool:
        return anyio.current_time() >= min(self._wedged_at, self._deaf_at)

    @property
    def dead(self) -> bool:
        return anyio.current_time() >= self._dead_at

    @property
    def load(self) -> dict[str, int]:
        """What it says of its work: ten steps a second, unless its loop stands still."""
        now = min(anyio.current_time(), self._stands_at)
        answered = sum(path.startswith("/v1/") for path in self.posted) + self.others_answered
        steps = int(10 * (now - self.launched_at))
        return {"running": self.others, "waiting": 0, "steps": steps, "answered": answered}

    def keep(self, sake: Keepsake | None, seconds: float) -> None:
        """See `lifecycle.host.Process`."""
        self.kept = None if sake is None or not seconds else (sake, seconds)

    def become_ready(self) -> None:
        self._listens_at = min(self._listens_at, anyio.current_time())
        self._ready_at = anyio.current_time()
        self._change()

    def become_deaf(self) -> None:
        self._deaf_at = anyio.current_time()
        self._change()

    def become_wedged(self) -> None:
        self._wedged_at = anyio.current_time()
        self._change()

    def recover(self) -> None:
        """Neither deaf nor wedged any more."""
        self._deaf_at = self._wedged_at = inf
        self._change()

    def exit(self, code: int, *last_words: str) -> None:
        """End the main process now."""
        for line in last_words:
            self.say(line)
        self._end_main(anyio.current_time(), code)
        self._change()

    def say(self, line: str) -> None:
        """Write a log line now."""
        now = anyio.current_time()
        self._lines.insert(sum(at <= now for at, _ in self._lines), (now, line))
        self._change()

    async def gone(self) -> None:
        """Return when nothing of the tree is left."""
        await self.until(lambda: self._gone_at)

    async def until(self, when: Callable[[], float]) -> None:
        """Wait for a time that may change meanwhile."""
        while anyio.current_time() < when():
            await self.change(when())

    async def change(self, deadline: float) -> None:
        """Wait until somebody has interfered, or until `deadline`."""
        changed = self._changed
        with anyio.CancelScope(deadline=deadline):
            await changed.wait()

    def next_time(self) -> float:
        """The next time at which its life brings a change by itself."""
        now = anyio.current_time()
        times = (self._exits_at, self._gone_at, self._deaf_at, self._wedged_at, self._ready_at, self._listens_at,
                 self._dead_at, self._stands_at)  # fmt: skip
        return min((at for at in times if at > now), default=inf)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
