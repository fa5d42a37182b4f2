"""When a server is started again, after how long, and when it is given up."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from lifecycle.attempt import backoff
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Verdict
from lifecycle.errors import ConfigError, Draining, PortTaken, StartFailed
from lifecycle.testing import Life, Turn, run_virtual
from tests.simulation.world import World


def crash(*words: str, code: int = 1) -> Life:
    """A start that fails, with last words that make it another failure than the one before."""
    return Life(ready=None, exits=1.0, code=code, says=tuple((0.5, line) for line in words))


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def until_the_end(backend: str, *lives: Life, **settings: Any) -> World:
    """Run a server until it ends by itself."""

    async def body() -> World:
        world = World(*lives, **settings)
        async with world.server as server:
            await server.ended()
        world.check_end()
        return world

    return run_virtual(body, backend=backend, limit=1e5)


def until_healthy(backend: str, *lives: Life, times: int = 1, **settings: Any) -> World:
    """Run a server until it is Healthy for the nth time, then stop it."""

    async def body() -> World:
        world = World(*lives, **settings)
        async with world.server as server:
            seq = 0
            for _ in range(times):
                seq = (await server.driver.wait("Healthy", after=seq)).seq
        world.check_end()
        return world

    return run_virtual(body, backend=backend, limit=1e5)


def waits(world: World) -> list[float]:
    """Seconds in each Backoff."""
    entered = world.times("Backoff")
    left = world.times("Locking")[1:]
    return [round(after - before, 3) for before, after in zip(entered, left, strict=True)]


def test_the_wait_is_doubled_for_each_failure_in_a_row_up_to_its_maximum(backend: str) -> None:
    words = [crash(word) for word in "abcdef"]
    world = until_healthy(backend, *words, Life(), max_attempts=9, backoff_initial=1.0, backoff_max=10.0)
    assert waits(world) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_the_lower_half_of_the_wait_is_sure_and_the_upper_one_is_chance() -> None:
    config = ServerConfig("x", backoff_initial=4.0, backoff_max=100.0)
    assert [backoff(2, config, roll) for roll in (0.0, 0.5, 1.0)] == [4.0, 6.0, 8.0]


def test_very_many_failures_overflow_nothing() -> None:
    assert backoff(10**6, ServerConfig("x"), 1.0) == 60.0


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_server_that_always_fails_is_started_max_attempts_times(backend: str, attempts: int) -> None:
    lives = [crash(word) for word in ("zero", "one", "two", "three", "four", "five")]
    world = until_the_end(backend, *lives, max_attempts=attempts)
    assert (world.server.state, len(world.host.processes)) == ("Failed", attempts)
    assert world.server.diagnosis is not None
    assert world.server.diagnosis.exit_code == 1


def test_crashes_of_a_server_that_has_served_are_never_too_much_alike(backend: str) -> None:
    serves = Life(exits=2.0)
    world = until_the_end(backend, serves, max_attempts=4)
    assert len(world.host.processes) == 4


def test_a_long_healthy_period_wipes_out_what_failed_before(backend: str) -> None:
    lives = (crash("a"), crash("b"), Life(exits=50.0), crash("c"), crash("d"), Life(ready=0.5))
    world = until_healthy(backend, *lives, times=2, max_attempts=4, attempt_window=40.0)
    assert len(world.host.processes) == 6
    assert waits(world) == [1.0, 2.0, 1.0, 2.0, 4.0]


def test_a_short_healthy_period_wipes_out_nothing(backend: str) -> None:
    lives = (crash("a"), crash("b"), Life(exits=30.0), crash("c"), Life())
    world = until_the_end(backend, *lives, max_attempts=4, attempt_window=40.0)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 4)


def test_a_hopeless_failure_is_not_tried_again(backend: str) -> None:
    world = until_the_end(backend, crash("error: unrecognized arguments: --x", code=2), max_attempts=5)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 1)
    assert world.server.diagnosis is not None
    assert (world.server.diagnosis.cause, world.server.diagnosis.verdict) == ("unknown-flag", Verdict.HOPELESS)


def test_what_a_server_printed_while_it_served_is_no_reason_to_give_it_up(backend: str) -> None:
    prompt = Life(exits=2.0, says=((1.0, "error: unrecognized arguments: in a prompt"),))
    world = until_healthy(backend, prompt, Life(), times=2)
    assert len(world.host.processes) == 2


def test_the_same_failure_twice_in_a_row_is_final(backend: str) -> None:
    world = until_the_end(backend, crash("at 0x7f01: no"), crash("at 0x7f02: no"), Life(), max_attempts=5)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 2)


@pytest.mark.parametrize(
    ("lives", "settings", "why"),
    [
        ([crash("a")], {}, "two starts in a row have failed in the very same way"),
        ([crash("a"), crash("b"), crash("c")], {"max_attempts": 3}, "3 failures in a row are all that"),
        ([crash("a")], {"max_attempts": 1}, "one failure is all that max_attempts = 1 allows"),
        ([crash("a", code=127)], {}, ""),
    ],
)
def test_why_there_is_no_further_attempt_is_said(
    backend: str, lives: list[Life], settings: dict[str, Any], why: str
) -> None:
    found = until_the_end(backend, *lives, **settings).server.diagnosis
    assert found is not None
    assert found.given_up.startswith(why)
    assert bool(found.given_up) is bool(why)
    assert ("not tried again" in found.text()) is bool(why)


def test_while_there_are_attempts_left_none_was_the_last(backend: str) -> None:
    world = until_healthy(backend, crash("a"), crash("b"), Life(), max_attempts=3)
    assert world.server.diagnosis is not None
    assert world.server.diagnosis.given_up == ""


def test_a_start_that_fails_as_its_server_died_before_is_one_failed_start(backend: str) -> None:
    """Both exit with 1 and say nothing. What served can serve again; of starts, two that fail alike are enough."""
    died, fails = Life(exits=2.0, code=1), Life(ready=None, exits=1.0, code=1)
    world = until_healthy(backend, died, fails, Life(), times=2, max_attempts=5)
    assert len(world.host.processes) == 3
    world = until_the_end(backend, died, fails, fails, Life(), max_attempts=5)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 3)


def test_a_failure_that_may_pass_is_tried_again_although_it_repeats(backend: str) -> None:
    offline = crash("We couldn't connect to the hub")
    world = until_healthy(backend, offline, offline, offline, Life(), max_attempts=5)
    assert len(world.host.processes) == 4


@pytest.mark.parametrize(
    ("operation", "error", "cause"),
    [
        ("spawn", OSError(2, "no such file"), "launch"),
        ("hold_ports", PortTaken(80, "nginx"), "port-taken"),
        ("hold_ports", OSError(99, "no such address"), "ports"),
        ("hold_ports", ConfigError("the folder of leases is somebody else's"), "ports"),
    ],
)
def test_what_cannot_be_launched_is_named_and_not_tried_again(
    backend: str, operation: str, error: Exception, cause: str
) -> None:
    async def body() -> World:
        world = World(Life(), max_attempts=5)
        world.host.plan(operation, Turn(0.0, error))
        async with world.server as server:
            with pytest.raises(StartFailed):
                await server.healthy()
        world.check_end()
        return world

    world = run_virtual(body, backend=backend)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 0)
    assert world.server.diagnosis is not None
    assert world.server.diagnosis.cause == cause


def test_an_adapters_bug_is_final_and_named_also_after_a_failure_that_was_worth_another_try(backend: str) -> None:
    async def body() -> World:
        world = World(crash("a"), Life(says=((1.0, "phase x"),)), max_attempts=5)
        async with world.server as server:
            await server.driver.wait("Backoff")
            world.adapter.faults["phase"] = ValueError("bad parser")
            await server.ended()
        world.check_end()
        return world

    world = run_virtual(body, backend=backend)
    assert world.server.diagnosis is not None
    assert (world.server.state, world.server.diagnosis.cause) == ("Failed", "fault")
    assert "bad parser" in world.server.diagnosis.summary


def test_a_bug_in_the_wait_between_attempts_is_final(backend: str) -> None:
    def broken() -> float:
        raise RuntimeError("no dice")

    async def body() -> World:
        world = World(crash("a"), Life(), max_attempts=5)
        world.server.activities._roll = broken
        async with world.server as server:
            await server.ended()
        world.check_end()
        return world

    world = run_virtual(body, backend=backend)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 1)


def test_a_stolen_port_costs_one_quick_start_on_another_port_and_no_attempt(backend: str) -> None:
    world = until_healthy(backend, Life(stolen=True), Life(), max_attempts=1)
    assert waits(world) == [0.0]
    ports = [process.port for process in world.host.processes]
    assert len(set(ports)) == 2


def test_a_second_stolen_port_in_a_row_costs_an_attempt(backend: str) -> None:
    world = until_the_end(backend, Life(stolen=True), Life(stolen=True), Life(), max_attempts=1)
    assert (world.server.state, len(world.host.processes)) == ("Failed", 2)


def test_a_server_that_was_healthy_has_its_quick_start_back(backend: str) -> None:
    lives = (Life(stolen=True), Life(exits=1.0), Life(stolen=True), Life())
    world = until_healthy(backend, *lives, times=2, max_attempts=2)
    assert waits(world) == [0.0, 1.0, 0.0]


def test_a_restart_keeps_the_port_for_those_who_know_it(backend: str) -> None:
    world = until_healthy(backend, Life(exits=2.0), Life(), times=2)
    ports = [process.port for process in world.host.processes]
    assert len(ports) == 2
    assert len(set(ports)) == 1


@pytest.mark.parametrize("state", ["Locking", "PortBound", "Starting", "Healthy", "Draining", "Backoff"])
def test_a_cancellation_in_any_state_releases_everything(backend: str, state: str) -> None:
    async def body() -> World:
        world = World(Life(ready=1.0, exits=3.0, orphans=True, kill=0.5), Life())
        world.host.plan("compile_lock", Turn(1.0))
        world.host.plan("spawn", Turn(1.0))
        with anyio.CancelScope() as outside:
            async with world.server as server:
                await server.driver.wait(state)
                outside.cancel()
                await server.ended()
        world.check_end()
        return world

    assert run_virtual(body, backend=backend).server.state == "Stopped"


def test_a_stop_lets_requests_finish_and_refuses_new_ones(backend: str) -> None:
    async def body() -> None:
        world = World(Life(reply=3.0))
        answers: list[dict[str, Any]] = []

        async def ask() -> None:
            answers.append(await world.server.chat({"messages": []}))

        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            group.start_soon(ask)
            await anyio.sleep(1.0)
            await server.stop()
            with pytest.raises(Draining):
                await server.chat({"messages": []})
        world.check_end()
        assert [answer["choices"][0]["text"] for answer in answers] == ["from 100"]
        assert [what for _, what in world.host.process.signals] == ["SIGTERM"]

    run_virtual(body, backend=backend)


def test_a_kill_cuts_a_drain_short(backend: str) -> None:
    async def body() -> float:
        world = World(Life(reply=100.0, term=None), drain_timeout=50.0)

        async def ask() -> None:
            with pytest.raises(Draining):
                await world.server.chat({"messages": []})

        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            group.start_soon(ask)
            await anyio.sleep(1.0)
            await server.stop()
            await anyio.sleep(1.0)
            began = anyio.current_time()
            await server.kill()
            await server.ended()
            took = anyio.current_time() - began
        world.check_end()
        assert [what for _, what in world.host.process.signals] == ["SIGKILL"]
        return took

    assert run_virtual(body, backend=backend) == pytest.approx(0.0)


def test_a_request_in_flight_survives_a_crash(backend: str) -> None:
    async def body() -> str:
        world = World(Life(exits=2.0, reply=10.0), Life(reply=1.0))
        async with world.server as server:
            answer = await server.chat({"messages": []})
        world.check_end()
        text: str = answer["choices"][0]["text"]
        return text

    assert run_virtual(body, backend=backend) == "from 101"
