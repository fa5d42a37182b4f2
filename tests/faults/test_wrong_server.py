"""Something answers on the port of a server: that is not yet the server."""

from __future__ import annotations

import os
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.errors import StartFailed
from lifecycle.server import Server
from tests.served import GUARD, HELLO, counts, fake, given_up, healthy, make, path_of, starts, tell

pytestmark = pytest.mark.anyio


def intruder(port: int) -> socket.socket:
    """Listens beside whoever else does: SO_REUSEPORT, as llama.cpp and vLLM have set it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


async def port_of_start(server: Server) -> int:
    with anyio.fail_after(GUARD):
        record = await server.driver.wait("Starting")
    assert record.port is not None
    return record.port


@pytest.mark.fault(77)
async def test_two_that_listen_on_one_port_are_told_apart_before_a_request_is_sent(tmp_path: Path) -> None:
    """The kernel spreads connections over both: some answers would come from the wrong model, without any error."""
    async with fake(tmp_path, attempts=[{"reuse_port": True, "bind_after": 0.5}, {}]) as server:
        port = await port_of_start(server)
        with closing(intruder(port)):
            await healthy(server)
            await server.chat(HELLO)
            assert starts(server)[0].port == port
            assert server.driver.facts.port != port
            assert server.diagnosis is not None
            assert f"port {port}" in server.diagnosis.summary
            assert f"pid {os.getpid()}, which is not ours" in server.diagnosis.summary


@pytest.mark.fault(78)
async def test_one_that_begins_to_listen_beside_a_healthy_server_is_found_and_got_away_from(tmp_path: Path) -> None:
    async with fake(
        tmp_path, attempts=[{"reuse_port": True}, {}], liveness_interval=0.1, liveness_timeout=1.0
    ) as server:
        await healthy(server)
        port = server.driver.facts.port
        assert port is not None
        seen = server.journal.seq
        with closing(intruder(port)), anyio.fail_after(GUARD):
            await server.driver.wait("Draining", after=seen)
            await server.driver.wait("Healthy", after=seen)
            assert server.driver.facts.port != port
            await server.chat(HELLO)
    assert server.diagnosis is not None
    assert f"pid {os.getpid()}, which is not ours" in server.diagnosis.summary


async def test_a_stolen_port_costs_no_attempt(tmp_path: Path) -> None:
    async with fake(tmp_path, attempts=[{"no_bind": True}, {}], max_attempts=1) as server:
        with closing(intruder(await port_of_start(server))):
            await healthy(server)
    assert server.driver.facts.failures == 0
    assert len(starts(server)) == 2


@pytest.mark.fault(80)
async def test_a_stranger_on_a_port_that_was_asked_for_is_named_and_never_used(tmp_path: Path) -> None:
    """The server itself lives and does not listen; the one who answers is somebody else."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with fake(tmp_path, {"no_bind": True}, port=port, max_attempts=1) as server:
        with closing(intruder(await port_of_start(server))), pytest.raises(StartFailed, match=f"pid {os.getpid()}"):
            await healthy(server)
    assert "Healthy" not in path_of(server)


@pytest.mark.fault(80)
async def test_a_port_that_was_asked_for_and_is_occupied_is_an_error_that_names_the_holder(tmp_path: Path) -> None:
    """Never a silent attachment to what is there, however well it answers."""
    async with fake(tmp_path) as first:
        await healthy(first)
        port = int(first.url.rpartition(":")[2])
        pid = (await counts(first))["pid"]
        error = await given_up(fake(tmp_path, port=port))
        assert error.diagnosis.cause == "port-taken"
        assert f"port {port} is taken by" in str(error)
        assert f"pid {pid}" in str(error) or "another server of this user's Stoker" in str(error)
        assert "--port" in str(error)
        assert (await counts(first))["generations"] == 1


@pytest.mark.fault(44, 77)
@pytest.mark.parametrize(
    ("settings", "serves"),
    [
        ({"model": "ours"}, "theirs"),
        ({"model": "ours", "served_name": "alias"}, "ours"),
        ({"model": "ours"}, "ours-2"),
        ({"model": "Ours"}, "ours"),
    ],
)
async def test_a_server_of_another_model_is_never_healthy_and_both_names_are_said(
    tmp_path: Path, settings: dict[str, Any], serves: str
) -> None:
    error = await given_up(fake(tmp_path, {"model": serves, "any_model": True}, **settings))
    assert error.diagnosis.cause == "wrong-model"
    assert repr(serves) in str(error)
    assert repr(settings.get("served_name", settings["model"])) in str(error)
    assert "check served_name and model" in str(error)


@pytest.mark.fault(79)
async def test_after_a_restart_on_another_port_requests_follow(tmp_path: Path) -> None:
    attempts: list[dict[str, Any]] = [{"routes": {"/v1/chat/completions": {"do": "hang"}}}, {}]
    async with fake(tmp_path, attempts=attempts, backoff_initial=0.4) as server:
        await healthy(server)
        old = server.url
        async with anyio.create_task_group() as group:
            group.start_soon(server.chat, HELLO)
            await anyio.wait_all_tasks_blocked()
            seen = server.journal.seq
            with suppress(OSError):
                await tell(server, "/_exit", {"signal": "SIGKILL"})
            with anyio.fail_after(GUARD):
                await server.driver.wait("Backoff", after=seen)
            taken = intruder(int(old.rpartition(":")[2]))
        with closing(taken):
            assert server.url != old
            await server.chat(HELLO)


async def test_an_endpoint_that_serves_another_model_is_not_attached_to(tmp_path: Path) -> None:
    async with fake(tmp_path) as there:
        await healthy(there)
        error = await given_up(make(tmp_path, "endpoint", base_url=there.url, model="other"))
        assert "'fake', not 'other'" in str(error)
        async with make(tmp_path, "endpoint", base_url=there.url) as server:
            await healthy(server)
            assert (await server.chat(HELLO))["model"] == "fake"
        assert there.state == "Healthy"
