"""A part of a larger server that nobody can ask: only its process tells how it does."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from lifecycle.adapter import CompileCache
from lifecycle.errors import StartFailed
from lifecycle.journal import Kind
from lifecycle.testing import Life, Turn, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
DEAF = Life(listens=None, ready=None)
"""It opens no port."""


def part(*lives: Life, **more: Any) -> World:
    return World(*lives, capabilities={"probed": False, "sleep": None, **more.pop("capabilities", {})}, **more)


@both
def test_it_is_healthy_as_soon_as_its_process_runs_and_stays_so_without_an_answer(backend: str) -> None:
    async def body() -> None:
        world = part(DEAF)
        async with world.server as server:
            world.host.plan("probe", Turn(0.0, RuntimeError("somebody asked it")))
            began = anyio.current_time()
            await server.healthy()
            assert anyio.current_time() == began
            await anyio.sleep(10_000.0)
            assert server.state == "Healthy"
        world.check_end()

    run_virtual(body, backend=backend, limit=1e5)


@both
def test_its_exit_is_the_end_of_an_attempt_and_the_same_exit_twice_ends_it(backend: str) -> None:
    async def body() -> None:
        world = part(Life(listens=None, ready=None, exits=3.0, says=((1.0, "what nobody knows"),)), max_attempts=5)
        async with world.server as server:
            await server.ended()
        world.check_end()
        assert [event for event, _ in world.transitions() if event == "Exited"] == ["Exited", "Exited"]
        assert server.diagnosis is not None
        assert "although nobody had asked it to" in server.diagnosis.summary

    run_virtual(body, backend=backend, limit=1e5)


@both
def test_a_known_fault_of_its_command_line_is_not_tried_again(backend: str) -> None:
    async def body() -> None:
        words = ((0.5, "error: unrecognized arguments: --x"),)
        world = part(Life(listens=None, ready=None, exits=1.0, code=2, says=words))
        async with world.server as server:
            await server.ended()
            assert server.state == "Failed"
            assert server.starts == 1
            with pytest.raises(StartFailed, match="unrecognized arguments"):
                await server.healthy()
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_it_waits_for_no_compile_lock_for_who_has_it_may_wait_for_this_part(backend: str) -> None:
    async def body() -> None:
        world = part(DEAF)
        lock = await world.host.compile_lock(CompileCache("cache"))
        assert lock is not None
        async with world.server as server:
            await server.healthy()
        lock.release()
        assert world.host.complete_caches == set()

    run_virtual(body, backend=backend, limit=100.0)


@both
def test_who_ignores_sigterm_and_has_nothing_to_finish_is_not_waited_for(backend: str) -> None:
    async def body() -> None:
        world = part(Life(listens=None, ready=None, term=None), capabilities={"longest_grace": 1.0}, drain_timeout=60.0)
        async with world.server as server:
            await server.healthy()
            began = anyio.current_time()
        assert anyio.current_time() - began == pytest.approx(1.0)
        assert [name for _, name in world.host.process.signals] == ["SIGTERM", "SIGKILL"]
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_its_log_is_read_from_the_launch_on(backend: str) -> None:
    async def body() -> None:
        world = part(Life(listens=None, ready=None, says=((1.0, "phase loading 1/2"),)))
        async with world.server as server:
            await server.healthy()
            record = await server.journal.wait(lambda one: one.kind is Kind.PHASE and one.detail["phase"] == "loading")
            assert record.after == "Healthy"
        world.check_end()

    run_virtual(body, backend=backend)
