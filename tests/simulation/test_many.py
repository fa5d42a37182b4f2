"""Servers that share a machine: one builds the compile cache, ports are nobody's twice."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

from lifecycle.config import ServerConfig
from lifecycle.server import Server
from lifecycle.testing import Life, SimulatedAdapter, SimulatedHost, run_virtual

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def server(host: SimulatedHost, name: str) -> Server:
    config = ServerConfig("simulated", name=name, max_attempts=2, backoff_initial=1.0)
    return Server(config, adapter=SimulatedAdapter(compiles="cache"), host=host)


async def together(host: SimulatedHost, count: int) -> list[float]:
    """When each of so many servers was Healthy."""
    healthy: list[float] = []

    async def one(name: str) -> None:
        async with server(host, name) as mine:
            await mine.healthy()
            healthy.append(anyio.current_time())
            await anyio.sleep(50)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, f"server-{number}")
    return healthy


@both
@pytest.mark.parametrize("seed", range(5))
def test_one_builds_the_cache_and_then_all_the_others_start_at_once(backend: str, seed: int) -> None:
    async def body() -> None:
        host = SimulatedHost([Life(ready=10.0)])
        began = anyio.current_time()
        healthy = await together(host, 5)
        assert [round(at - began) for at in healthy] == [10, 20, 20, 20, 20]
        assert (host.held(), host.ledger.violations) == ((), [])
        assert len([hold for hold in host.ledger.holds if hold.kind == "lock"]) == 1

    run_virtual(body, backend=backend, seed=seed)


@both
def test_when_the_builder_fails_the_next_one_builds(backend: str) -> None:
    async def body() -> None:
        host = SimulatedHost([Life(ready=None, exits=5.0), Life(ready=10.0)])
        began = anyio.current_time()
        healthy = await together(host, 2)
        assert [round(at - began) for at in healthy] == [15, 25]
        locks = [hold for hold in host.ledger.holds if hold.kind == "lock"]
        assert len(locks) == 2
        assert locks[0].ended is not None
        assert locks[0].ended < locks[1].began
        assert host.held() == ()

    run_virtual(body, backend=backend)


@both
def test_who_waits_for_the_builder_can_be_stopped(backend: str) -> None:
    async def body() -> None:
        host = SimulatedHost([Life(ready=None, exits=None)])
        async with AsyncExitStack() as servers:
            first = await servers.enter_async_context(server(host, "first"))
            await first.driver.wait("Starting")
            second = await servers.enter_async_context(server(host, "second"))
            await second.driver.wait("Locking")
            await second.stop()
            assert await second.ended() == "Stopped"
            assert first.state == "Starting"
        assert host.held() == ()

    run_virtual(body, backend=backend)


@both
def test_no_two_servers_have_one_port(backend: str) -> None:
    async def body() -> None:
        host = SimulatedHost([Life(ready=1.0)])
        host.taken_ports |= set(range(30_001, 30_010, 2))
        await together(host, 6)
        ports = [process.port for process in host.processes]
        assert len(set(ports)) == 6
        assert not host.taken_ports & set(ports)

    run_virtual(body, backend=backend)
