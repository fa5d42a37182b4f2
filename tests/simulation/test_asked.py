"""A server that does not speak HTTP: its adapter knows how to ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from lifecycle.adapter import Ask, Launch
from lifecycle.asked import PAUSE
from lifecycle.errors import LaunchError, StartFailed
from lifecycle.testing import Life, SimulatedAdapter, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
DEAF = Life(ready=None)
"""It listens, and answers no HTTP."""


@dataclass
class Asking(SimulatedAdapter):
    """Its server says what it lacks."""

    says: Callable[[], str] = str
    asked: int = 0

    async def ready(self, launch: Launch, ask: Ask) -> str:
        self.asked += 1
        await ask(("simulated-server", "--ask", str(launch.port)))
        return self.says()


def world(says: Callable[[], str], **settings: Any) -> tuple[World, Asking]:
    made = World(DEAF, capabilities={"sleep": None, "generates": False, "reports_model": False}, **settings)
    adapter = Asking(compiles="cache", capabilities=made.adapter.capabilities, says=says)
    server = made.server
    server.adapter = server.activities.adapter = server.activities.attempt.adapter = made.adapter = adapter
    return made, adapter


@both
def test_it_is_ready_when_it_says_so_and_is_asked_no_more_often_than_that_is_worth(backend: str) -> None:
    async def body() -> None:
        began = anyio.current_time()
        made, adapter = world(lambda: "1 of 2 parts" if anyio.current_time() - began < 2.5 else "")
        async with made.server as server:
            await server.healthy()
            assert 2.5 <= anyio.current_time() - began <= 2.5 + 2 * PAUSE
            assert adapter.asked <= 5
        made.check_end()

    run_virtual(body, backend=backend)


@both
def test_what_it_lacks_is_named_when_its_time_is_over(backend: str) -> None:
    async def body() -> None:
        made, _ = world(lambda: "1 of 2 parts are there", startup_timeout=3.0, max_attempts=1)
        async with made.server as server:
            with pytest.raises(StartFailed, match=r"startup_timeout = 3 s; last seen: .*: 1 of 2 parts are there"):
                await server.healthy()
        made.check_end()

    run_virtual(body, backend=backend)


@both
def test_what_it_loses_while_healthy_ends_the_attempt_and_is_named(backend: str) -> None:
    async def body() -> None:
        lacks = ""
        made, _ = world(lambda: lacks, max_attempts=1)
        async with made.server as server:
            await server.healthy()
            lacks = "a part is gone"
            await server.ended()
        made.check_end()
        assert server.diagnosis is not None
        assert server.diagnosis.cause == "unwell"
        assert "a part is gone" in server.diagnosis.summary

    run_virtual(body, backend=backend, limit=1000.0)


@both
def test_a_question_that_cannot_be_asked_is_forgiven_like_a_slow_answer(backend: str) -> None:
    async def body() -> None:
        failing = 0

        def says() -> str:
            nonlocal failing
            if failing:
                failing -= 1
                raise LaunchError("the interpreter is busy")
            return ""

        made, adapter = world(says)
        async with made.server as server:
            await server.healthy()
            failing = made.server.config.liveness_failures - 1
            asked = adapter.asked
            await anyio.sleep(20.0)
            assert adapter.asked > asked + 3
            assert server.state == "Healthy"
        made.check_end()

    run_virtual(body, backend=backend, limit=1000.0)


