"""Sleep: what is in flight finishes first, requests wait, and a server that wakes up is verified before it serves."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from lifecycle.errors import StokerError
from lifecycle.host import NoAnswer
from lifecycle.journal import Kind
from lifecycle.testing import Life, Turn, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
HELLO: dict[str, Any] = {"messages": []}


@both
def test_a_request_in_flight_finishes_before_the_engine_is_put_to_sleep(backend: str) -> None:
    async def body() -> None:
        world = World(Life(reply=3.0))
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            answers: list[dict[str, Any]] = []

            async def ask() -> None:
                answers.append(await server.chat(HELLO))
                assert "/sleep" not in world.host.process.posted

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await server.sleep()
            assert len(answers) == 1
            assert world.host.process.asleep
            assert server.state == "Asleep"
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_requests_to_a_server_that_sleeps_wait_until_it_is_awake_and_verified(backend: str) -> None:
    async def body() -> None:
        world = World(Life())
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            await server.sleep()
            answers: list[dict[str, Any]] = []

            async def ask() -> None:
                answers.append(await server.chat(HELLO))

            group.start_soon(ask)
            await anyio.sleep(100.0)
            assert answers == []
            asked = len(world.host.process.posted)
            await server.wake()
            assert world.host.process.posted[asked:][:2] == ["/wake", "/v1/completions"]
        world.check_end()
        assert len(answers) == 1
        assert len(world.host.processes) == 1

    run_virtual(body, backend=backend)


@both
def test_one_that_is_wanted_again_before_it_sleeps_is_not_put_to_sleep(backend: str) -> None:
    async def body() -> None:
        world = World(Life(reply=3.0))
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            group.start_soon(server.chat, HELLO)
            await anyio.wait_all_tasks_blocked()

            async def sleep() -> None:
                with pytest.raises(StokerError, match="did not fall asleep"):
                    await server.sleep()

            group.start_soon(sleep)
            await anyio.wait_all_tasks_blocked()
            assert server.state == "Asleep"
            await server.wake()
            assert "/sleep" not in world.host.process.posted
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_drain_before_sleep_that_takes_too_long_is_cut_and_the_request_sent_again_after_waking(backend: str) -> None:
    async def body() -> None:
        world = World(Life(reply=20.0), drain_timeout=5.0)
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()
            answers: list[dict[str, Any]] = []

            async def ask() -> None:
                answers.append(await server.chat(HELLO))

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            began = anyio.current_time()
            await server.sleep()
            assert 5.0 <= anyio.current_time() - began < 5.5
            await server.wake()
        world.check_end()
        assert len(answers) == 1
        assert len(world.host.reached) == 2

    run_virtual(body, backend=backend)


@both
@pytest.mark.parametrize("way", ["to sleep", "awake"])
def test_an_engine_that_does_not_do_what_it_is_told_is_started_again(backend: str, way: str) -> None:
    async def body() -> None:
        world = World(Life())
        async with world.server as server:
            await server.healthy()
            if way == "awake":
                await server.sleep()
            world.host.plan("probe", Turn(0.0, NoAnswer("reset")))
            if way == "awake":
                await server.wake()
            else:
                with pytest.raises(StokerError, match="did not fall asleep"):
                    await server.sleep()
                await server.healthy()
            assert server.driver.facts.attempt == 2
            assert server.diagnosis is not None
            assert server.diagnosis.cause == "not-asleep"
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_a_server_that_dies_in_its_sleep_is_started_again(backend: str) -> None:
    async def body() -> None:
        world = World(Life(), Life())
        async with world.server as server:
            await server.healthy()
            await server.sleep()
            world.host.process.exit(1)
            await server.driver.wait("Draining")
            await server.healthy()
        world.check_end()
        assert len(world.host.processes) == 2

    run_virtual(body, backend=backend)


@both
def test_a_stop_ends_a_server_that_sleeps_at_once(backend: str) -> None:
    async def body() -> float:
        world = World(Life())
        async with world.server as server:
            await server.healthy()
            await server.sleep()
            began = anyio.current_time()
        world.check_end()
        return anyio.current_time() - began

    assert run_virtual(body, backend=backend) < 0.1


@both
def test_only_a_healthy_server_can_be_put_to_sleep_and_only_one_that_can(backend: str) -> None:
    async def body() -> None:
        world = World(Life(ready=2.0))
        async with world.server as server:
            with pytest.raises(StokerError, match="only a Healthy one can be put to sleep"):
                await server.sleep()
            await server.healthy()
            await server.wake()  # it is
        world.check_end()
        assert any(record.kind is Kind.IGNORED for record in world.records)
        world = World(Life(), capabilities={"sleep": None})
        async with world.server as server:
            await server.healthy()
            with pytest.raises(StokerError, match=r"cannot sleep.*sleep_mode = true"):
                await server.sleep()
        world.check_end()

    run_virtual(body, backend=backend)
