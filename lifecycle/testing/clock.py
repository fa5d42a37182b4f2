"""Virtual time: an hour of waiting passes at once, on asyncio and on trio, in an order that a seed decides.

Real processes, sockets and threads know nothing of it: what runs here must wait for timers and events only, such as a
server on a `SimulatedHost`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LIMIT = 1e8
"""Virtual seconds after which a run counts as hung: three years."""


def run_virtual(
    function: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    backend: str = "asyncio",
    seed: int = 0,
    limit: float = LIMIT,
) -> T:
    """Run `await function(*args)` on a fresh event loop whose clock jumps to the next timer when all tasks wait.

    Args:
        backend: "asyncio" (needs looptime) or "trio" (needs trio).
        seed: decides in which order tasks that could all go on do so. The same seed gives the same run.
        limit: virtual seconds; then `TimeoutError` is raised.
    """

    async def limited() -> T:
        with anyio.fail_after(limit):
            return await function(*args)

    if backend == "trio":
        trio = _import("trio", "trio")
        clock = _import("trio.testing", "trio").MockClock(autojump_threshold=0)
        with _trio_order(trio, seed):
            return anyio.run(limited, backend="trio", backend_options={"clock": clock})
    make = _asyncio_loop(seed)
    return anyio.run(limited, backend="asyncio", backend_options={"loop_factory": make})


def _import(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise ImportError(f"virtual time needs the package {package!r}: pip install {package}") from None


@contextmanager
def _trio_order(trio: Any, seed: int) -> Iterator[None]:
    """Trio shuffles the tasks of each round with a random generator of its own. It has no public way to seed it; these
    two names are the ones that Hypothesis and pytest-trio use (trio 0.16 to 0.35)."""
    run = trio._core._run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        run._r.setstate(before[1])


def _asyncio_loop(seed: int) -> Callable[[], asyncio.AbstractEventLoop]:
    virtual: Any = _import("looptime", "looptime").LoopTimeEventLoop
    order = random.Random(seed)

    class Loop(virtual, asyncio.SelectorEventLoop):  # type: ignore[misc]
        """Goes on with the tasks of each round in random order. asyncio promises no order between tasks; the order of
        callbacks that are not steps of tasks stays, since its own parts rely on that.

        Before that they are sorted by age: anyio keeps the tasks of a cancel scope in a set, which has another order in
        each process."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.set_task_factory(_numbered(count()))

        def _run_once(self) -> None:
            ready = self._ready
            steps = [at for at, handle in enumerate(ready) if _is_step(handle)]
            if len(steps) > 1:
                handles = sorted((ready[at] for at in steps), key=lambda handle: handle._callback.__self__.number)
                order.shuffle(handles)
                for at, handle in zip(steps, handles, strict=True):
                    ready[at] = handle
            super()._run_once()

    make: Callable[..., asyncio.AbstractEventLoop] = Loop
    return lambda: make(noop_cycles=0)


class _Task(asyncio.Task[Any]):
    number = 0
    """Counts the tasks of a loop."""


def _numbered(numbers: Iterator[int]) -> Callable[..., Any]:
    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _Task:
        task = _Task(coroutine, loop=loop, **options)
        task.number = next(numbers)
        return task

    return make


def _is_step(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), _Task)
