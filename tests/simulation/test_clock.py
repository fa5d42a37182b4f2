"""Virtual time: it jumps, its order follows a seed, and a run that hangs ends."""

from __future__ import annotations

import subprocess
import sys
import time

import anyio
import pytest

from lifecycle.testing import run_virtual

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def order() -> list[int]:
    """In which order ten tasks go on."""
    went: list[int] = []

    async def task(number: int) -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            went.append(number)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(task, number)
    return went


@both
def test_a_day_passes_at_once(backend: str) -> None:
    async def body() -> float:
        began = anyio.current_time()
        await anyio.sleep(86_400)
        return anyio.current_time() - began

    before = time.monotonic()
    assert run_virtual(body, backend=backend) == pytest.approx(86_400)
    assert time.monotonic() - before < 60  # a hang guard: nobody waited for the day


@both
def test_the_same_seed_gives_the_same_order(backend: str) -> None:
    assert run_virtual(order, backend=backend, seed=5) == run_virtual(order, backend=backend, seed=5)


CANCELLED = """
import anyio, sys
from lifecycle.testing import run_virtual

async def body():
    went = []

    async def task(number):
        try:
            await anyio.sleep_forever()
        finally:
            went.append(number)

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(task, number)
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    return went

print(run_virtual(body, backend=sys.argv[1], seed=5))
"""
"""anyio keeps the tasks that it cancels in a set, in the order of their addresses."""


@both
def test_the_same_seed_gives_the_same_order_in_every_process(backend: str) -> None:
    command = [sys.executable, "-c", CANCELLED, backend]
    said = {subprocess.run(command, check=True, capture_output=True, timeout=60).stdout for _ in range(3)}
    assert len(said) == 1


@both
def test_seeds_give_different_orders(backend: str) -> None:
    orders = {tuple(run_virtual(order, backend=backend, seed=seed)) for seed in range(10)}
    assert len(orders) > 5


@both
def test_a_seed_leaves_the_loops_of_others_alone(backend: str) -> None:
    import trio._core._run as run

    before = (run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate())
    run_virtual(order, backend=backend, seed=1)
    assert (run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()) == before


@both
def test_timers_fire_in_the_order_of_their_times(backend: str) -> None:
    async def body() -> list[float]:
        fired: list[float] = []

        async def timer(seconds: float) -> None:
            await anyio.sleep(seconds)
            fired.append(seconds)

        async with anyio.create_task_group() as group:
            for seconds in (3.0, 0.5, 100.0, 0.25, 7.0):
                group.start_soon(timer, seconds)
        return fired

    assert run_virtual(body, backend=backend) == [0.25, 0.5, 3.0, 7.0, 100.0]


@both
def test_what_never_ends_is_ended_at_the_limit(backend: str) -> None:
    with pytest.raises(TimeoutError):
        run_virtual(anyio.sleep_forever, backend=backend, limit=1e6)


@both
def test_arguments_results_and_errors_go_through(backend: str) -> None:
    async def divide(one: int, two: int) -> float:
        await anyio.sleep(1)
        return one / two

    assert run_virtual(divide, 6, 3, backend=backend) == 2
    with pytest.raises(ZeroDivisionError):
        run_virtual(divide, 6, 0, backend=backend)


@pytest.mark.parametrize(("backend", "package"), [("asyncio", "looptime"), ("trio", "trio")])
def test_a_missing_package_is_named(backend: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs the package '{package}': pip install {package}"):
        run_virtual(order, backend=backend)


def test_the_kit_imports_no_test_tool() -> None:
    tools = ("pytest", "trio", "looptime", "httpx")
    code = f"import sys, lifecycle.testing; print([name for name in {tools} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "[]"
