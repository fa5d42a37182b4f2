"""A server that nobody needs is put to rest and serves whoever asks next; requests keep it awake, anybody's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from lifecycle.server_facts import Idled
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
HELLO: dict[str, Any] = {"messages": []}
IDLE = 60.0


def world_of(life: Life | None = None, **settings: Any) -> World:
    return World(life or Life(), **{"idle_timeout": IDLE, "idle_action": "stop", **settings})


async def idled(world: World) -> float:
    """When it was put to rest, in seconds from now."""
    began = anyio.current_time()
    await world.server.journal.wait(lambda record: record.event == "Idled", after=world.server.journal.seq)
    return anyio.current_time() - began


@both
def test_what_nobody_needs_is_ended_and_the_next_request_starts_it_again(backend: str) -> None:
    async def body() -> None:
        world = world_of()
        async with world.server as server:
            await server.healthy()
            assert IDLE <= await idled(world) < IDLE + 1
            await server.driver.wait("Dormant")
            assert world.host.held() == ()
            await anyio.sleep(10_000)
            assert server.state == "Dormant"
            assert (await server.chat(HELLO))["choices"]
            assert server.starts == 2
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_what_can_sleep_sleeps_and_the_next_request_wakes_the_same_process(backend: str) -> None:
    async def body() -> None:
        world = world_of(idle_action="sleep")
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            for _ in range(3):
                await idled(world)
                await anyio.sleep(1000)
                assert (server.state, world.host.process.asleep) == ("Asleep", True)
                for _ in range(8):
                    group.start_soon(server.chat, HELLO)
                await server.chat(HELLO)
            assert server.starts == len(world.host.processes) == 1
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_each_request_puts_the_rest_off(backend: str) -> None:
    async def body() -> None:
        world = world_of(Life(reply=1.0))
        async with world.server as server:
            await server.healthy()
            for _ in range(20):
                await anyio.sleep(IDLE - 2)
                await server.chat(HELLO)
                assert server.state == "Healthy"
            assert IDLE <= await idled(world) < IDLE + 1
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_request_that_takes_longer_than_the_rest_is_put_off_is_not_cut(backend: str) -> None:
    async def body() -> None:
        world = world_of(Life(reply=5 * IDLE))
        async with world.server as server:
            await server.chat(HELLO)
            assert server.starts == 1
            assert not [record for record in world.records if record.event == "Idled"]
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_requests_of_others_that_the_engine_tells_of_count_and_tokens_of_our_own_do_not(backend: str) -> None:
    async def body() -> None:
        # Its loop stands still, as with nothing to do: every stall_timeout it is tried with one token.
        life = Life(tells_load=True, stands=0.0)
        world = world_of(life, capabilities={"load_path": "/load"}, stall_timeout=IDLE / 3, liveness_interval=1.0)
        async with world.server as server:
            await server.healthy()
            world.host.process.others = 1
            await anyio.sleep(3 * IDLE)
            assert server.state == "Healthy"
            assert "/v1/completions" in world.host.process.posted[1:]
            world.host.process.others = 0
            for _ in range(9):  # one that comes and goes between two looks
                await anyio.sleep(IDLE / 2)
                world.host.process.others_answered += 1
            assert server.state == "Healthy"
            assert await idled(world) < IDLE + 2
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_request_that_comes_while_it_is_being_ended_is_answered_by_the_next_process(backend: str) -> None:
    async def body() -> None:
        world = world_of(Life(term=4.0))
        async with world.server as server:
            await server.healthy()
            await idled(world)
            await anyio.sleep(1.0)
            assert server.state == "Draining"
            await server.chat(HELLO)
            assert server.starts == 2
            assert world.times("Dormant")[0] == world.times("Locking")[1]
        world.check_end()

    run_virtual(body, backend=backend)


@both
@pytest.mark.parametrize("ask", ["wake", "healthy"])
def test_whoever_waits_for_it_wakes_it_too(ask: str, backend: str) -> None:
    async def body() -> None:
        world = world_of()
        async with world.server as server:
            await server.healthy()
            await server.driver.wait("Dormant")
            await getattr(server, ask)()
            assert server.state == "Healthy"
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_one_that_was_put_to_sleep_by_hand_is_not_woken_by_a_request(backend: str) -> None:
    async def body() -> None:
        world = world_of(idle_action="sleep")
        async with world.server as server:
            await server.healthy()
            await server.sleep()
            with anyio.move_on_after(10 * IDLE) as scope:
                await server.chat(HELLO)
            assert scope.cancelled_caught
            await server.wake()
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_stop_ends_a_dormant_server_at_once_and_requests_are_refused(backend: str) -> None:
    async def body() -> None:
        world = world_of()
        async with world.server as server:
            await server.healthy()
            await server.driver.wait("Dormant")
            began = anyio.current_time()
            await server.stop()
            assert await server.ended() == "Stopped"
            assert anyio.current_time() - began < 0.1
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_crash_loop_is_not_forgiven_by_a_short_rest(backend: str) -> None:
    """Only a server that was well for `attempt_window` has its failures forgotten when it is put to rest."""

    async def body() -> None:
        for window, failures in ((IDLE / 2, 0), (10 * IDLE, 1)):
            world = World(Life(exits=1.0), Life(), idle_timeout=IDLE, attempt_window=window)
            async with world.server as server:
                await idled(world)
                assert server.driver.facts.failures == failures
            world.check_end()

    run_virtual(body, backend=backend)


def test_what_is_idle_says_for_how_long_it_was() -> None:
    async def body() -> None:
        world = world_of()
        async with world.server as server:
            await server.driver.wait("Dormant")
            (record,) = (each for each in world.records if each.event == Idled.__name__)
            assert record.detail == {"seconds": IDLE}
        world.check_end()

    run_virtual(body)
