"""A dead engine, a stuck one and a long prefill are three things, also for requests that others send; a drain waits for
what the engine still works on; the next attempt waits for the memory of the last."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.adapter import EngineLoad
from lifecycle.gate import Gate
from lifecycle.testing import Life, Turn, run_virtual
from lifecycle.vigil import Standstill
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
TELLS: dict[str, Any] = {"load_path": "/load"}
ABORTS: dict[str, Any] = {**TELLS, "abort": ("/abort", {"all": True})}


async def first_failure(world: World, *, others: int = 0) -> tuple[str, float, str]:
    """Event and time, since Healthy, at which the first life of a server fails, and what was said of it."""
    async with world.server as server:
        healthy = await server.driver.wait("Healthy")
        world.host.process.others = others
        record = await server.driver.wait("Draining", after=healthy.seq)
        await server.kill()
    world.check_end()
    return str(record.event), record.time - healthy.time, str(record.detail["diagnosis"]["summary"])


@both
def test_a_long_prefill_is_no_fault_while_the_counters_of_the_engine_move(backend: str) -> None:
    async def body() -> None:
        world = World(Life(tells_load=True, wedged=1.0, reply=1.0), capabilities=TELLS)
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            world.host.process.others = 1
            group.start_soon(server.chat, {"messages": []})
            await anyio.sleep(60.0)  # thirty times stall_timeout
            assert server.state == "Healthy"
            world.host.process.others = 0
            world.host.process.recover()
        world.check_end()
        assert len(world.host.processes) == 1

    run_virtual(body, backend=backend)


@both
def test_an_engine_whose_counters_stand_still_with_requests_running_is_stuck(backend: str) -> None:
    async def body() -> tuple[str, float, str]:
        life = Life(tells_load=True, wedged=0.0, stands=0.0)
        world = World(life, capabilities={**TELLS, "generates": True}, stall_timeout=2.0)
        world.host.lives = [Life(tells_load=True, wedged=1.0, stands=1.0)]
        return await first_failure(world, others=3)

    event, after, said = run_virtual(body, backend=backend)
    assert event == "Stalled"
    assert 2.0 <= after <= 1.0 + 2.0 + 0.5 + 1.0 + 0.1  # it stands, stall_timeout, a look, one token
    assert "3 requests running and 0 waiting, its counters have stood still for stall_timeout = 2 s" in said


@both
def test_an_engine_that_stopped_while_it_had_no_work_is_found_out_before_somebody_needs_it(backend: str) -> None:
    async def body() -> tuple[str, float, str]:
        life = Life(tells_load=True, wedged=1.0, stands=1.0)
        return await first_failure(World(life, capabilities={**TELLS, "generates": True}, stall_timeout=2.0))

    event, after, said = run_virtual(body, backend=backend)
    assert event == "Stalled"
    assert 2.0 <= after <= 1.0 + 2.0 + 0.5 + 1.0 + 0.1
    assert "the engine, which has nothing to do, has stood still for stall_timeout = 2 s" in said


@both
@pytest.mark.parametrize("life", [Life(tells_load=True, stands=1.0), Life(wedged=1.0)])
def test_an_engine_without_work_is_not_stuck(backend: str, life: Life) -> None:
    async def body() -> None:
        world = World(life, capabilities=TELLS)
        async with world.server as server:
            await server.healthy()
            await anyio.sleep(60.0)
            assert server.state == "Healthy"
        world.check_end()

    run_virtual(body, backend=backend)


@both
@pytest.mark.parametrize("tells", [True, False], ids=["an engine that knows of no request", "one that says nothing"])
def test_requests_that_get_nothing_and_that_the_engine_does_not_know_of_are_stuck(backend: str, tells: bool) -> None:
    async def body() -> None:
        world = World(Life(tells_load=tells, wedged=1.0, reply=5.0), Life(), capabilities=TELLS)
        async with world.server as server:
            answer = await server.chat({"messages": []})
        world.check_end()
        assert answer["choices"][0]["text"] == "from 101"
        assert ("Stalled", "Draining") in world.transitions()

    run_virtual(body, backend=backend)


@both
def test_an_engine_that_stands_still_and_gives_a_token_is_not_stuck(backend: str) -> None:
    async def body() -> None:
        world = World(Life(tells_load=True, stands=1.0), capabilities=TELLS)
        async with world.server as server:
            await server.healthy()
            world.host.process.others = 2
            await anyio.sleep(30.0)
            assert server.state == "Healthy"
            world.host.process.others = 0
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_health_path_that_answers_with_an_error_is_believed_sooner_than_silence(backend: str) -> None:
    async def body() -> list[float]:
        slow: dict[str, Any] = {"liveness_interval": 10.0, "liveness_timeout": 5.0, "max_attempts": 1}
        return [(await first_failure(World(life, **slow)))[1] for life in (Life(dead=1.0), Life(deaf=1.0))]

    died, silent = run_virtual(body, backend=backend)
    assert died < 10 + 2 * 1.0 + 0.1
    assert silent > 3 * 10


@both
def test_a_line_of_the_log_that_is_a_phase_brings_the_next_probe_at_once(backend: str) -> None:
    async def body() -> float:
        world = World(Life(dead=3.0, says=((3.0, "phase engine-dead"),)), liveness_interval=100.0, max_attempts=1)
        return (await first_failure(world))[1]

    assert run_virtual(body, backend=backend) < 3.0 + 2 * 1.0 + 0.1


@both
def test_a_drain_waits_for_the_requests_of_others(backend: str) -> None:
    async def body() -> float:
        world = World(Life(tells_load=True), capabilities=TELLS, drain_timeout=30.0)
        async with world.server as server:
            await server.healthy()
            process = world.host.process
            process.others = 2
            began = anyio.current_time()
            await server.stop()
            await anyio.sleep(7.0)
            assert process.signals == []
            process.others = 0
            await server.ended()
            took = anyio.current_time() - began
        world.check_end()
        return took

    assert 7.0 <= run_virtual(body, backend=backend) < 7.5


@both
def test_a_drain_that_has_used_up_its_time_aborts_what_is_left_before_it_ends_the_process(backend: str) -> None:
    async def body() -> None:
        world = World(Life(tells_load=True), capabilities=ABORTS, drain_timeout=5.0)
        async with world.server as server:
            await server.healthy()
            process = world.host.process
            process.others = 1
            began = anyio.current_time()
            await server.stop()
            await server.ended()
            assert process.posted[-1] == "/abort"
            ((at, signal),) = process.signals
            assert signal == "SIGTERM"
            assert 5.0 <= at - began < 5.5
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_drain_that_is_over_in_time_aborts_nothing(backend: str) -> None:
    async def body() -> None:
        world = World(Life(tells_load=True), capabilities=ABORTS)
        async with world.server as server:
            await server.healthy()
        assert "/abort" not in world.host.process.posted
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_the_next_attempt_begins_when_the_memory_of_the_last_is_back(backend: str) -> None:
    async def body() -> float:
        world = World(Life(exits=1.0), Life())
        world.host.has_gpus = True
        world.host.plan("memory", Turn(delay=2.0))
        async with world.server as server:
            died = await server.driver.wait("Draining")
            waits = await server.driver.wait("Backoff", after=died.seq)
            await server.driver.wait("Healthy", after=waits.seq)
        world.check_end()
        return waits.time - died.time

    assert run_virtual(body, backend=backend) == pytest.approx(2.0)


@both
def test_memory_that_does_not_come_back_is_said_and_not_waited_for_for_ever(backend: str) -> None:
    async def body() -> None:
        world = World(Life(), memory_timeout=4.0)
        world.host.has_gpus = True
        world.host.plan("memory", Turn())
        async with world.server as server:
            await server.healthy()
            began = anyio.current_time()
            await server.stop()
            await server.ended()
            assert anyio.current_time() - began == pytest.approx(4.0)
        world.check_end()
        assert any("memory_timeout = 4 s" in str(record.detail.get("phase")) for record in world.records)

    run_virtual(body, backend=backend)


@both
def test_a_kill_does_not_wait_for_memory(backend: str) -> None:
    async def body() -> None:
        world = World(Life(), memory_timeout=100.0)
        world.host.has_gpus = True
        world.host.plan("memory", Turn())
        async with world.server as server:
            await server.healthy()
            began = anyio.current_time()
            await server.kill()
            await server.ended()
            assert anyio.current_time() - began < 1.0
        world.check_end()

    run_virtual(body, backend=backend)


LOADS = st.none() | st.builds(
    EngineLoad, st.integers(0, 2), st.integers(0, 1), st.tuples(st.floats(0, 2).map(lambda number: round(number, 0)))
)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), LOADS), min_size=1, max_size=12), st.floats(1.0, 10.0), st.booleans())
def test_an_engine_is_suspicious_only_if_it_has_stood_still_the_whole_time_and_somebody_elses_only_with_work(
    looks: list[tuple[float, EngineLoad | None]], limit: float, ours: bool
) -> None:
    now, engine, gate = 0.0, Standstill(0.0, ours=ours), Gate("idle")
    seen: list[tuple[float, EngineLoad | None]] = []
    for pause, load in looks:
        now += pause
        engine.look(load, now)
        seen.append((now, load))
    if engine.suspicious(gate, limit, now):
        last = seen[-1][1]
        assert last is not None
        since = [load for at, load in seen if at > now - limit]
        assert ours or all(load is None or (load.running + load.waiting > 0) for load in since)
        assert len({load.progress for load in since if load is not None}) == 1
