"""What a person is told while a server takes its time."""

from __future__ import annotations

import anyio
import pytest

from lifecycle.cli.watch import attended
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_state_that_lasts_is_told_of_less_and_less_often_with_what_it_waits_for(backend: str) -> None:
    async def body() -> list[str]:
        said: list[str] = []
        world = World(Life(listens=None, ready=None), startup_timeout=100, no_progress_timeout=100, max_attempts=1)
        async with world.server as server, attended(server, anyio.Event(), said.append):
            await server.ended()
        return said

    said = run_virtual(body, backend=backend)
    assert [line.split("…")[1] for line in said if "Starting" in line] == [
        f" for {seconds} s: nothing listens" for seconds in (10, 30, 70)
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_healthy_server_is_left_alone(backend: str) -> None:
    async def body() -> list[str]:
        said: list[str] = []
        world = World(Life())
        async with world.server as server, attended(server, anyio.Event(), said.append):
            await server.healthy()
            await anyio.sleep(1000)
        return said

    assert run_virtual(body, backend=backend) == []
