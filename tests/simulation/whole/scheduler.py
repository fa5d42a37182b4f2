"""Everything by which a run could differ from its repetition is taken from the seed: clocks, threads, dice."""

from __future__ import annotations

import contextvars
import random as dice
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import anyio
import anyio.to_thread

import lifecycle.batch.feed
import lifecycle.batch.store.store
import lifecycle.journal
from lifecycle.resources import caches, compile_lock
from tests.simulation.whole.locks import LockService

EPOCH = 1_800_000_000.0
READERS_OF_CLOCKS: tuple[ModuleType, ...] = (
    lifecycle.journal, lifecycle.batch.feed, lifecycle.batch.store.store, caches,
)  # fmt: skip


class Clock:
    """In the place of the module `time`: the event loop's virtual time, and a wall clock that jumps."""

    def __init__(self) -> None:
        self.jumped = 0.0

    def monotonic(self) -> float:
        return anyio.current_time()

    def time(self) -> float:
        return EPOCH + anyio.current_time() + self.jumped

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Threads:
    """In the place of threads: each call takes a while, and happens at one moment of it. One that is abandoned happens
    later, or has just happened."""

    def __init__(self, random: dice.Random, slow: Callable[[], float]) -> None:
        self._random = random
        self._slow = slow
        self._late: list[tuple[float, Callable[[], object]]] = []

    async def run_sync(
        self, function: Callable[..., Any], *args: Any, abandon_on_cancel: bool = False, cancellable: bool = False,
        limiter: object = None,
    ) -> Any:  # fmt: skip
        """As `anyio.to_thread.run_sync`."""
        await anyio.lowlevel.checkpoint()
        abandoned = abandon_on_cancel or cancellable
        try:
            with anyio.CancelScope(shield=not abandoned):
                await anyio.sleep(self._slow())
        except BaseException:
            context = contextvars.copy_context()
            self._late.append((anyio.current_time() + self._slow(), lambda: context.run(function, *args)))
            if self._random.random() < 0.5:
                self.catch_up(all_of_them=True)
            raise
        return function(*args)

    def catch_up(self, all_of_them: bool = False) -> None:
        """Let abandoned threads do what they have to."""
        due = [each for each in self._late if all_of_them or each[0] <= anyio.current_time()]
        self._late = [each for each in self._late if each not in due]
        for _, function in due:
            try:
                function()
            except Exception:
                continue  # nobody hears it


@contextmanager
def simulated(seed: int, clock: Clock, threads: Threads, locks: LockService) -> Iterator[None]:
    """Put all that in its place, and take it away again."""
    state, modules = dice.getstate(), {module: module.__dict__["time"] for module in READERS_OF_CLOCKS}
    run_sync, real_locks = anyio.to_thread.run_sync, compile_lock.__dict__["Locks"]
    dice.seed(seed)
    try:
        for module in modules:
            setattr(module, "time", clock)  # noqa: B010
        setattr(anyio.to_thread, "run_sync", threads.run_sync)  # noqa: B010
        setattr(compile_lock, "Locks", locks.make)  # noqa: B010
        yield
    finally:
        for module, real in modules.items():
            setattr(module, "time", real)  # noqa: B010
        setattr(anyio.to_thread, "run_sync", run_sync)  # noqa: B010
        setattr(compile_lock, "Locks", real_locks)  # noqa: B010
        dice.setstate(state)
