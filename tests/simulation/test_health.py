"""What counts as getting on, as alive and as stuck."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from lifecycle.errors import StartFailed
from lifecycle.journal import Kind
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
SLOW = {"startup_timeout": 30.0, "no_progress_timeout": 3.0, "max_attempts": 1}


def lines(*words: str) -> tuple[tuple[float, str], ...]:
    """One line a second."""
    return tuple((float(second), line) for second, line in enumerate(words))


async def failed_start(life: Life, **settings: Any) -> tuple[str, float]:
    """The cause and the time at which a start is given up."""
    world = World(life, **settings)
    began = anyio.current_time()
    async with world.server as server:
        with pytest.raises(StartFailed):
            await server.healthy()
        took = anyio.current_time() - began
    world.check_end()
    assert server.diagnosis is not None
    return server.diagnosis.cause, round(took)


CLOCKS = ("12:00:{:02}", "INFO 12-02 03:35:{:02},123", "2026-12-02T03:35:{:02}Z", "0.00.{:03}.456 I", "17961846{:02}.5",
          "[   {}.345678]", "[00:{:02}<00:30]")  # fmt: skip


@both
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_line_that_repeats_is_no_progress_whatever_its_clock_says(backend: str, clock: str) -> None:
    async def body() -> tuple[str, float]:
        words = [f"{clock.format(second)} still waiting" for second in range(25)]
        return await failed_start(Life(ready=None, says=lines(*words), term=0.0), **SLOW)

    assert run_virtual(body, backend=backend) == ("no-progress", 3)


@both
def test_lines_that_differ_are_progress_until_the_start_has_taken_too_long(backend: str) -> None:
    async def body() -> tuple[str, float]:
        words = [f"12:00:{second:02} shard {second}/40" for second in range(40)]
        return await failed_start(Life(ready=None, says=lines(*words), term=0.0), **SLOW)

    assert run_virtual(body, backend=backend) == ("startup-timeout", 30)


@both
def test_a_phase_that_moves_many_times_a_second_is_noted_once_a_second_and_at_its_end(backend: str) -> None:
    async def body() -> list[tuple[str, int | None]]:
        says = [(number / 100, f"phase load {number}/299") for number in range(300)]
        world = World(Life(ready=4.0, says=(*says, (3.5, "phase warm-up"))), startup_timeout=9.0)
        async with world.server as server:
            await server.healthy()
        world.check_end()
        phases = [r.detail for r in world.records if r.kind is Kind.PHASE and r.after == "Starting"]
        return [(detail["phase"], detail["done"]) for detail in phases]

    expected = [("load", 0), ("load", 100), ("load", 200), ("load", 299), ("warm-up", None)]
    assert run_virtual(body, backend=backend) == expected


@both
def test_an_exit_ends_the_wait_for_readiness_at_once(backend: str) -> None:
    async def body() -> tuple[str, float]:
        return await failed_start(Life(ready=None, exits=2.0), **SLOW)

    assert run_virtual(body, backend=backend) == ("exited", 2)


@both
def test_a_server_that_listens_has_its_port_and_its_hold_is_let_go(backend: str) -> None:
    async def body() -> None:
        world = World(Life())
        async with world.server as server:
            await server.healthy()
            assert world.host.ledger.open("socket") == ()
            assert len(world.host.ledger.open("lease")) == 1
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_slow_answers_are_forgiven_when_a_good_one_comes_between(backend: str) -> None:
    async def body() -> None:
        world = World(Life())
        async with world.server as server:
            await server.healthy()
            for _ in range(4):  # two liveness probes fail each time; three in a row would be too many
                world.host.process.become_deaf()
                await anyio.sleep(3.5)
                world.host.process.recover()
                await anyio.sleep(3.5)
            assert server.state == "Healthy"
        world.check_end()
        assert len(world.host.processes) == 1

    run_virtual(body, backend=backend)


@both
def test_a_server_that_stays_silent_is_restarted(backend: str) -> None:
    async def body() -> None:
        world = World(Life(deaf=5.0), Life())
        async with world.server as server:
            first = await server.driver.wait("Healthy")
            await server.driver.wait("Healthy", after=first.seq)
        world.check_end()
        assert ("Unwell", "Draining") in world.transitions()

    run_virtual(body, backend=backend)


@both
def test_a_long_request_is_no_stall_while_one_token_can_be_had(backend: str) -> None:
    async def body() -> None:
        world = World(Life(reply=60.0))  # thirty times stall_timeout
        async with world.server as server:
            answer = await server.chat({"messages": []})
        world.check_end()
        assert answer["choices"][0]["text"] == "from 100"

    run_virtual(body, backend=backend)


@both
def test_requests_of_a_server_that_is_stuck_are_sent_again_to_the_next(backend: str) -> None:
    async def body() -> None:
        world = World(Life(wedged=1.0, reply=5.0), Life())
        async with world.server as server:
            answer = await server.chat({"messages": []})
        world.check_end()
        assert answer["choices"][0]["text"] == "from 101"
        assert ("Stalled", "Draining") in world.transitions()

    run_virtual(body, backend=backend)


@both
def test_requests_to_an_external_server_that_falls_silent_are_sent_again_when_it_is_back(backend: str) -> None:
    async def body() -> None:
        world = World(endpoint=Life(deaf=1.0, reply=3.0), max_attempts=5)

        async def bring_back() -> None:
            await world.server.driver.wait("Backoff")
            world.host.change_endpoint(Life())

        async with world.server as server, anyio.create_task_group() as group:
            group.start_soon(bring_back)
            assert "choices" in await server.chat({"messages": []})
        world.check_end()
        assert len(world.host.reached) == 2

    run_virtual(body, backend=backend)
