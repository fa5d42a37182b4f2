"""Hundreds of requests: no hidden limit of a client, one retry layer, a crash or a drain that loses nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.errors import Draining, RequestError, RequestRefused, RetriesExhausted
from lifecycle.server import Server
from tests.served import GUARD, HELLO, counts, fake, healthy, path_of, tell, until

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


def asking(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"prompt {number}"}]}


async def ask_all(
    server: Server, count: int, *, at_once: int = 1000, kill_after: int | None = None
) -> Counter[str]:
    """Send so many requests; how they ended. When so many have, the server may be killed."""
    ended: Counter[str] = Counter()
    answered = anyio.Event()
    places = anyio.Semaphore(at_once)

    async def ask(number: int) -> None:
        try:
            async with places:
                answer = await server.chat(asking(number))
            ended[answer["object"]] += 1
        except (RequestError, Draining) as error:
            ended[type(error).__name__] += 1
        if ended.total() == kill_after:
            answered.set()

    async def kill() -> None:
        await answered.wait()
        await tell_dying(server)

    with anyio.fail_after(2 * GUARD):
        async with anyio.create_task_group() as group:
            if kill_after is not None:
                group.start_soon(kill)
            for number in range(count):
                group.start_soon(ask, number)
    return ended


async def tell_dying(server: Server) -> None:
    with suppress(OSError):
        await tell(server, "/_exit", {"signal": "SIGKILL"})


@pytest.mark.fault(26, 30, 32)
async def test_five_hundred_requests_are_five_hundred_in_flight(tmp_path: Path) -> None:
    """Not 100, which is the cap of most clients' pools; and none waits for a place in a pool until it times out."""
    async with fake(tmp_path, {"routes": {CHAT: {"do": "hang"}}}, request_timeout=GUARD) as server:
        await healthy(server)
        async with anyio.create_task_group() as group:
            for number in range(500):
                group.start_soon(server.chat, asking(number))
            await until(lambda found: found["in_flight"] == 500, server)
            group.cancel_scope.cancel()
        assert server.gate.peak == 500
        await until(lambda found: found["in_flight"] == 0 and found["disconnects"] == 500, server)


@pytest.mark.fault(27, 28, 29)
@pytest.mark.parametrize(
    ("rule", "sent", "error"),
    [
        pytest.param({"status": 500}, 3, RetriesExhausted, id="nine submissions of one request, by two retry layers"),
        pytest.param({"status": 400}, 1, RequestRefused, id="a context overflow is retried for minutes"),
        pytest.param({"status": 413}, 1, RequestRefused, id="a body that is too large is retried"),
        pytest.param({"do": "hang"}, 1, RequestError, id="a storm of requests that were only slow"),
        pytest.param({"do": "stall"}, 1, RequestError, id="an answer that stops in its middle is asked for again"),
        pytest.param({"do": "reset"}, 3, RetriesExhausted, id="connections that break"),
        pytest.param({"status": 429, "headers": {"Retry-After": "0"}}, 3, RetriesExhausted, id="a rate limit"),
    ],
)
async def test_how_often_one_request_reaches_the_server(
    tmp_path: Path, rule: dict[str, Any], sent: int, error: type[RequestError]
) -> None:
    server = fake(tmp_path, {"routes": {CHAT: rule}}, max_retries=2, request_timeout=0.3, stall_timeout=900.0)
    async with server:
        await healthy(server)
        with pytest.raises(error) as caught:
            await server.chat(HELLO)
        found = await counts(server)
    assert found["requests"][CHAT] == caught.value.attempts == sent
    assert path_of(server)[-3:] == ["Healthy", "Draining", "Stopped"]


@pytest.mark.fault(31)
async def test_a_burst_does_not_break_a_server_that_takes_only_some(tmp_path: Path) -> None:
    flags = {"overload": 16, "reply_delay": 0.05, "retry_after": "0.1"}
    async with fake(tmp_path, flags) as server:
        await healthy(server)
        assert await ask_all(server, 100) == {"fake": 100}
        assert (await counts(server))["peak"] == 16


async def test_a_crash_in_the_midst_of_hundreds_of_requests_loses_none(tmp_path: Path) -> None:
    """Those that were answered are not asked again; each other one is asked once more at most."""
    async with fake(tmp_path, {"reply_delay": 0.3}) as server:
        await healthy(server)
        assert await ask_all(server, 200, kill_after=90, at_once=60) == {"fake": 200}
        assert path_of(server).count("Healthy") == 2
        again = (await counts(server))["bodies"]
    assert max(again.values()) == 1
    assert sum(again.values()) <= 200 - 90 + 1


async def test_two_crashes_in_a_row_cost_no_request(tmp_path: Path) -> None:
    attempts = [{"exit_after_requests": number} for number in (20, 50)] + [{}]
    async with fake(tmp_path, {"reply_delay": 0.1}, attempts=attempts, max_attempts=4) as server:
        await healthy(server)
        assert await ask_all(server, 100) == {"fake": 100}
        assert path_of(server).count("Healthy") == 3


async def test_a_stream_that_has_not_begun_survives_a_crash_and_one_that_has_says_so(tmp_path: Path) -> None:
    attempts: list[dict[str, Any]] = [{"token_delay": 0.2, "tokens": 1000}, {}]
    async with fake(tmp_path, {}, attempts=attempts) as server:
        await healthy(server)

        async def read() -> list[dict[str, Any]]:
            async with server.stream(HELLO) as chunks:
                async for _ in chunks:
                    await tell_dying(server)
            return []

        with pytest.raises(RequestError, match=r"broke|was cut"):
            await read()
        async with server.stream(HELLO) as chunks:
            assert len([chunk async for chunk in chunks]) == 5


@pytest.mark.fault(33)
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_when_a_server_ends_every_request_has_an_answer_or_a_named_error(tmp_path: Path, how: str) -> None:
    async with fake(tmp_path, {"reply_delay": 0.5, "on_term": "drain"}) as server:
        await healthy(server)
        ended: Counter[str] = Counter()
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                ended.update(await ask_all(server, 10))

            group.start_soon(ask)
            await until(lambda found: found["in_flight"] == 10, server)
            await (server.stop() if how == "stop" else server.kill())
            with pytest.raises(Draining):
                await server.chat(HELLO)
            with pytest.raises(Draining):
                async with server.stream(HELLO):
                    pass
        assert ended == ({"fake": 10} if how == "stop" else {"Draining": 10})
        assert await server.ended() == "Stopped"


async def test_requests_that_wait_for_a_restart_are_refused_when_it_is_called_off(tmp_path: Path) -> None:
    async with fake(tmp_path, attempts=[{"exit_after_bind": 0.5}, {"no_bind": True}]) as server:
        await healthy(server)
        seen = server.journal.seq
        await server.driver.wait("Starting", after=seen)
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(Draining):
                    await server.chat(HELLO)

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await server.stop()


@pytest.mark.fault(35)
async def test_a_drain_that_takes_too_long_is_cut_and_says_what_was_left(tmp_path: Path) -> None:
    flags = {"routes": {CHAT: {"do": "hang"}}, "on_term": "ignore"}
    server = fake(tmp_path, flags, drain_timeout=0.3, terminate_timeout=0.5)
    async with server:
        await healthy(server)
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                assert await ask_all(server, 5) == {"Draining": 5}

            group.start_soon(ask)
            await until(lambda found: found["in_flight"] == 5, server)
            await server.stop()
    (drained,) = [record for record in server.journal.records if record.detail.get("phase") == "drained"]
    assert drained.detail["left"] == 5
