"""Sleep mode: an engine dies of a request in its sleep, and of falling asleep over one. Neither may reach it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.custom import CustomAdapter
from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig, load_config
from lifecycle.errors import StokerError
from lifecycle.server import Server
from tests.fake import fake_command, stats
from tests.served import GUARD, HELLO, QUICK, healthy

pytestmark = pytest.mark.anyio


class Sleeper(CustomAdapter):
    """The fake server, said to be able to sleep."""

    def capabilities_for(self, config: ServerConfig) -> Capabilities:
        return replace(super().capabilities_for(config), sleep=("/sleep", {}), wake=("/wake_up", {}))


def sleeper(folder: Path, **flags: Any) -> Server:
    values: dict[str, Any] = {"model": "fake", "state_dir": str(folder / "state"), **QUICK}
    if "idle_timeout" in flags:
        values |= {"idle_timeout": flags.pop("idle_timeout"), "idle_action": "sleep"}
    given = {"command": fake_command(can_sleep=True, **flags), **values}
    config, _ = load_config("custom", adapter=Sleeper(), **given)
    return Server(config, adapter=Sleeper())


async def count(server: Server) -> dict[str, Any]:
    return await anyio.to_thread.run_sync(stats, server.url)


@pytest.mark.fault(97)
async def test_requests_are_held_while_it_sleeps_and_answered_by_the_same_process(tmp_path: Path) -> None:
    async with sleeper(tmp_path) as server:
        await healthy(server)
        pid = server.driver.facts.pid
        answers: list[dict[str, Any]] = []

        async def ask() -> None:
            answers.append(await server.chat(HELLO))

        with anyio.fail_after(GUARD):
            await server.sleep()
            before = (await count(server))["generations"]
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert (await count(server))["generations"] == before
                await server.wake()
        assert len(answers) == 8
        assert server.driver.facts.pid == pid
        assert server.driver.facts.attempt == 1


@pytest.mark.fault(98)
async def test_what_is_in_flight_is_finished_before_it_is_put_to_sleep(tmp_path: Path) -> None:
    async with sleeper(tmp_path, reply_delay=0.5) as server, anyio.create_task_group() as group:
        await healthy(server)
        answers: list[dict[str, Any]] = []

        async def ask() -> None:
            answers.append(await server.chat(HELLO))

        for _ in range(4):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert server.gate.in_flight == 4
        with anyio.fail_after(GUARD):
            await server.sleep()
        assert len(answers) == 4
        assert server.driver.facts.attempt == 1


@pytest.mark.fault(98)
async def test_one_token_is_had_after_it_wakes_up_before_anything_else(tmp_path: Path) -> None:
    async with sleeper(tmp_path) as server:
        await healthy(server)
        with anyio.fail_after(GUARD):
            await server.sleep()
            before = (await count(server))["generations"]
            await server.wake()
            assert (await count(server))["generations"] == before + 1


@pytest.mark.fault(97, 98)
async def test_one_that_nobody_asks_sleeps_and_wakes_for_whoever_does_in_the_same_process(tmp_path: Path) -> None:
    async with sleeper(tmp_path, idle_timeout=0.2) as server:
        await healthy(server)
        with anyio.fail_after(GUARD):
            for _ in range(3):
                await server.driver.wait("Asleep", after=server.journal.seq)
                assert (await server.chat(HELLO))["choices"]
        assert server.starts == 1


async def test_a_server_whose_engine_knows_no_sleep_says_how_it_would(tmp_path: Path) -> None:
    config, adapter = load_config(
        "custom", command=fake_command(), model="fake", state_dir=str(tmp_path / "state"), **QUICK
    )
    async with Server(config, adapter=adapter) as server:
        await healthy(server)
        with pytest.raises(StokerError, match="cannot sleep"):
            await server.sleep()
        assert server.state == "Healthy"
