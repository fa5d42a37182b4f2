"""Health says yes, and the engine is dead or stuck; or health says no, and the engine is only busy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.errors import StokerError
from tests.served import GUARD, HELLO, counts, fake, healthy, path_of, starts, tell, until

pytestmark = pytest.mark.anyio
CHAT, TOKEN = "/v1/chat/completions", "/v1/completions"
WATCHFUL: dict[str, Any] = {
    "stall_timeout": 0.3, "liveness_interval": 0.05, "liveness_timeout": 0.25, "liveness_failures": 3,
}  # fmt: skip
STUCK: dict[str, Any] = {CHAT: {"do": "hang"}, TOKEN: {"do": "hang"}}


@pytest.mark.fault(21, 22, 23)
@pytest.mark.parametrize(
    "routes",
    [
        pytest.param({CHAT: {"do": "headers"}, TOKEN: {"do": "headers"}}, id="200, headers, and then nothing"),
        pytest.param({CHAT: {"do": "stall"}, TOKEN: {"do": "stall"}}, id="half an answer, and then nothing"),
        pytest.param(STUCK, id="health 200 after the engine was killed, requests hang"),
        pytest.param({**STUCK, TOKEN: {"status": 500}}, id="one rank of many is dead: not a token can be had"),
        pytest.param({CHAT: {"do": "hang"}, "/health": {"status": 503}}, id="later it says 503"),
        pytest.param({CHAT: {"do": "hang"}, "/health": {"do": "hang"}}, id="its event loop stands still"),
        pytest.param({CHAT: {"do": "hang"}, "/health": {"do": "reset"}}, id="it resets every connection"),
    ],
)
async def test_a_server_that_does_nothing_any_more_is_restarted_and_no_request_is_lost(
    tmp_path: Path, routes: dict[str, Any]
) -> None:
    async with fake(tmp_path, **WATCHFUL) as server:
        await healthy(server)
        await tell(server, "/_routes", routes)
        with anyio.fail_after(GUARD):
            assert (await server.chat(HELLO))["object"] == "fake"
    assert path_of(server).count("Healthy") == 2
    assert server.diagnosis is not None
    assert server.diagnosis.cause in ("stalled", "unwell")


@pytest.mark.fault(22)
async def test_an_engine_that_dies_under_its_parent_is_noticed(tmp_path: Path) -> None:
    """Its parent lives, says 200 for a while, and answers nothing."""
    async with fake(tmp_path, {"child": "session"}, **WATCHFUL) as server:
        await healthy(server)
        await tell(server, "/_routes", STUCK)
        await tell(server, "/_kill_children", {})
        with anyio.fail_after(GUARD):
            await server.chat(HELLO)
    assert len(starts(server)) == 2


async def test_the_diagnosis_says_which_limit_and_what_was_in_flight(tmp_path: Path) -> None:
    async with fake(tmp_path, max_attempts=1, **WATCHFUL) as server:
        await healthy(server)
        await tell(server, "/_routes", STUCK)
        async with anyio.create_task_group() as group:
            group.start_soon(silent, server.chat(HELLO))
            with anyio.fail_after(GUARD):
                assert await server.ended() == "Failed"
    assert "1 requests in flight" in str(server.diagnosis)
    assert "stall_timeout = 0.3 s" in str(server.diagnosis)


async def silent(coroutine: Any) -> None:
    with pytest.raises(StokerError):
        await coroutine


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "routes",
    [
        pytest.param({"/health": {"do": "hang", "first": 2}}, id="health waits behind long prefills, then recovers"),
        pytest.param({"/health": {"status": 503, "first": 2}}, id="two bad answers, then good ones"),
        pytest.param({"/health": [{"do": "reset", "first": 1}, {"first": 1}] * 9}, id="every other probe fails"),
    ],
)
async def test_a_probe_that_fails_now_and_then_does_not_kill(tmp_path: Path, routes: dict[str, Any]) -> None:
    async with fake(tmp_path, **WATCHFUL) as server:
        await healthy(server)
        await tell(server, "/_routes", routes)
        before = (await counts(server))["requests"]["/health"]
        await until(lambda found: found["requests"]["/health"] >= before + 6, server)
        await server.chat(HELLO)
    assert path_of(server).count("Healthy") == 1


@pytest.mark.fault(24)
async def test_a_long_request_is_no_stall_while_the_engine_gives_tokens(tmp_path: Path) -> None:
    async with fake(tmp_path, {"routes": {CHAT: {"delay": 1.2}}}, **WATCHFUL) as server:
        await healthy(server)
        await server.chat(HELLO)
        assert (await counts(server))["requests"][TOKEN] >= 3
    assert path_of(server).count("Healthy") == 1


@pytest.mark.fault(25)
async def test_an_idle_server_is_not_asked_for_tokens(tmp_path: Path) -> None:
    async with fake(tmp_path, **WATCHFUL) as server:
        await healthy(server)
        found = await until(lambda found: found["requests"]["/health"] >= 8, server)
    assert found["generations"] == 1


@pytest.mark.fault(25)
async def test_a_probe_that_is_slow_is_let_finish(tmp_path: Path) -> None:
    """A server that crashes of the first probe that is given up serves on."""
    routes = {"/health": [{"first": 1}, {"delay": 0.1}]}
    async with fake(tmp_path, {"routes": routes, "exit_after_aborted": 1}, **WATCHFUL) as server:
        await healthy(server)
        await until(lambda found: found["requests"]["/health"] >= 5, server)
        assert (await counts(server))["aborted"] == 0
        await server.chat(HELLO)
    assert path_of(server).count("Healthy") == 1
