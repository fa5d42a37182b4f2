"""Attaching on virtual time: who the server is, how it was left, and what becomes of it when it is not well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.adopting import ITS_OWN, misfit, prints
from lifecycle.config import ServerConfig
from lifecycle.errors import StartFailed
from lifecycle.host import Keepsake
from lifecycle.testing import Life, SimulatedHost, SimulatedProcess, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
HELLO: dict[str, Any] = {"messages": []}
PORT = 29_999


def host_with(life: Life, **changes: Any) -> SimulatedHost:
    """A host where a manager has died, and its server is kept."""
    host = SimulatedHost([Life()])
    left = SimulatedProcess(99, Path("left.log"), life, PORT, host._meet)
    left.asleep = changes.get("state") == "Asleep"
    config = World().server.config
    sake = Keepsake("Healthy", left.pid, (PORT,), "left.log", prints(config))
    left.keep(replace(sake, **changes), 60.0)
    host.leave(left)
    return host


@both
def test_it_is_verified_before_it_serves_and_no_process_is_started(backend: str) -> None:
    async def body() -> None:
        host = host_with(Life())
        left = host.left
        world = World(host=host, attach=True)
        async with world.server as server:
            assert (await server.chat(HELLO))["choices"]
            assert world.transitions()[:4] == [
                ("Start", "Locking"), ("FoundKept", "Adopting"), ("Adopted", "Starting"), ("BecameReady", "Healthy"),
            ]
            assert left is not None
            assert "/v1/completions" in left.posted
            assert (host.processes, server.driver.facts.port, server.starts) == ([left], PORT, 1)
        world.check_end()
        assert not left.alive

    run_virtual(body, backend=backend)


@both
def test_one_that_its_manager_had_put_to_sleep_is_woken_before_anything_is_asked_of_it(backend: str) -> None:
    async def body() -> None:
        host = host_with(Life(ready=0.0), state="Asleep")
        world = World(host=host, attach=True)
        async with world.server as server:
            await server.healthy()
            assert host.process.posted[:2] == ["/wake", "/v1/completions"]
            assert server.starts == 1
        world.check_end()

    run_virtual(body, backend=backend)


@both
def test_without_attach_it_is_left_alone(backend: str) -> None:
    async def body() -> None:
        host = host_with(Life())
        world = World(host=host)
        async with world.server as server:
            await server.healthy()
            assert server.url != f"http://127.0.0.1:{PORT}"
        world.check_end()
        assert host.left is not None
        assert host.left.alive

    run_virtual(body, backend=backend)


@both
def test_where_none_is_kept_one_is_started(backend: str) -> None:
    async def body() -> None:
        world = World(Life(), attach=True)
        async with world.server as server:
            await server.healthy()
        world.check_end()
        assert ("LockAcquired", "PortBound") in world.transitions()

    run_virtual(body, backend=backend)


@both
@pytest.mark.parametrize(
    ("life", "named"),
    [(Life(ready=0.0, status=401), "refuses our key"), (Life(stolen=True), "does not listen on its port")],
)
def test_one_that_is_not_ours_to_serve_with_is_refused_and_stays_with_its_keeper(
    life: Life, named: str, backend: str
) -> None:
    async def body() -> None:
        host = host_with(life)
        left = host.left
        assert left is not None
        world = World(host=host, attach=True)
        async with world.server as server:
            with pytest.raises(StartFailed, match=named):
                await server.healthy()
        world.check_end()
        assert (host.left, left.alive, host.processes) == (left, True, [])

    run_virtual(body, backend=backend)


@both
def test_one_that_is_not_well_any_more_is_ended_and_another_started(backend: str) -> None:
    async def body() -> None:
        host = host_with(Life(deaf=0.0))
        left = host.left
        world = World(host=host, attach=True, probe_timeout=1.0)
        async with world.server as server:
            await server.healthy()
            assert left is not None
            assert not left.alive
            assert server.starts == 2
        world.check_end()

    run_virtual(body, backend=backend)


@both
@pytest.mark.parametrize("action", ["", "sleep"])
def test_its_keeper_is_trusted_with_it_exactly_while_it_is_healthy_or_sleeps(action: str, backend: str) -> None:
    async def body() -> None:
        world = World(Life(ready=2.0), keep_for=30.0)
        async with world.server as server:
            await server.driver.wait("Starting")
            await anyio.sleep(1.0)
            process = world.host.process
            assert process.kept is None
            await server.healthy()
            await anyio.wait_all_tasks_blocked()
            assert process.kept is not None
            sake, seconds = process.kept
            assert (sake.state, sake.pid, sake.ports, seconds) == ("Healthy", process.pid, (process.port,), 30.0)
            if action:
                await server.sleep()
                assert process.kept is not None
                assert process.kept[0].state == "Asleep"
            await server.stop()
            assert process.kept is None
        world.check_end()

    run_virtual(body, backend=backend)


@pytest.mark.parametrize("name", ITS_OWN)
def test_every_setting_that_a_server_has_from_its_start_must_be_the_same(name: str) -> None:
    config = ServerConfig("simulated", model="m")
    sake = Keepsake("Healthy", 1, (PORT,), "log", prints(config))
    assert misfit(sake, config) == ""
    before = getattr(config, name)
    other = {"x": "1"} if isinstance(before, dict) else not before if isinstance(before, bool) else 7
    changed: Any = {name: other}
    assert name in misfit(sake, replace(config, **changed))


def test_a_setting_that_is_its_managers_alone_may_be_another_one() -> None:
    config = ServerConfig("simulated", model="m")
    sake = Keepsake("Healthy", 1, (PORT,), "log", prints(config))
    changed = replace(config, name="n", startup_timeout=1.0, keep_for=5.0, idle_timeout=3.0, max_attempts=9, port=PORT)
    assert misfit(sake, changed) == ""
    assert "port" in misfit(sake, replace(config, port=PORT + 1))
    assert "an older setting" in misfit(replace(sake, settings={**sake.settings, "an older setting": "x"}), config)
