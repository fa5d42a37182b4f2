"""What holds of a fleet behind a router, the fake one (tests/faults/test_front.py) and the real one
(tests/engines/test_router.py) alike. Each is given the router's settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx

from lifecycle.fleet.front import Front
from tests.fronts import (
    KEY,
    Setup,
    client,
    complete,
    control,
    kill,
    known,
    listed,
    load,
    make_front,
    pid_of_router,
    pids,
    served,
)
from tests.served import GUARD


async def one_url_names_the_model_and_streams(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, replicas=2, min_healthy=2) as front, client() as http:
        url = await served(front)
        assert front.registrar.have == 2
        models = (await http.get(f"{url}/v1/models")).json()
        assert [each["id"] for each in models["data"]] == ["echo"]
        assert (await complete(http, url)).json()["choices"][0]["finish_reason"] == "length"
        chat = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
        async with http.stream("POST", f"{url}/v1/chat/completions", json=chat) as answer:
            events = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        assert len(events) > 3
    assert front.state == "Stopped"


async def three_keys_open_three_doors(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, replicas=1) as front, httpx.AsyncClient(trust_env=False) as nobody:
        url = await served(front)
        assert (await complete(nobody, url)).status_code == 401
        (replica,) = front.fleet.urls
        assert (await complete(nobody, replica)).status_code == 401
        async with client() as http:
            assert (await complete(http, url)).status_code == 200
            for method, path in (("GET", "/workers"), ("POST", "/workers"), ("DELETE", "/workers/x")):
                assert (await http.request(method, url + path)).status_code == 401
        assert (await control(front, "GET", "/workers")).status == 200
        logs = [file.read_text() for file in (folder / "state" / "logs").iterdir()]
        assert not [text for text in logs if KEY in text or front._routing.control_key in text]


async def a_replica_killed_under_load_costs_no_outsider_an_answer(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, latency=0.05) as front:
        url = await served(front)
        await known(front, 3)
        async with load(url) as outsiders:
            await outsiders.more(50)
            victim = pids(front)[0]
            kill(victim)
            with anyio.fail_after(GUARD):
                await front.registrar.until(lambda: front.registrar.have == 2)
                await front.registrar.until(lambda: front.registrar.have == 3)
            await outsiders.more(50)
        assert outsiders.bad == []
        assert victim not in pids(front)
        assert await listed(front) == sorted(front.fleet.urls)


async def a_rolling_restart_under_load_refuses_nobody(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, latency=0.05) as front:
        url = await served(front)
        await known(front, 3)
        before = pids(front)
        async with load(url) as outsiders:
            await outsiders.more(30)
            with anyio.fail_after(3 * GUARD):
                await front.rolling_restart()
            await known(front, 3)
            await outsiders.more(30)
        assert outsiders.bad == []
        assert set(before).isdisjoint(pids(front))
        assert await listed(front) == sorted(front.fleet.urls)


async def a_router_that_dies_is_back_at_the_same_url_with_all_replicas(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, replicas=2) as front, client() as http:
        url = await served(front)
        await known(front, 2)
        before = pids(front)
        kill(pid_of_router(front))
        with anyio.fail_after(GUARD):
            await front.registrar.until(lambda: front.registrar.have == 0)
        assert await served(front) == url
        await known(front, 2)
        assert (await complete(http, url)).status_code == 200
        assert pids(front) == before


async def what_is_in_flight_when_it_ends_is_answered_and_nothing_new_is_taken(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, replicas=2, latency=1.0) as front, client() as http:
        url = await served(front)
        answers = []

        async def ask() -> None:
            answers.append((await complete(http, url)).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(ask)
            with anyio.fail_after(GUARD):
                while (await in_flight(front)) < 4:  # noqa: ASYNC110 - a process is not an event
                    await anyio.sleep(0.01)
            await front.stop()
            with anyio.fail_after(GUARD):
                await front.router.ended()
            async with client() as late:
                try:
                    await complete(late, url)
                    raise AssertionError("a request was taken after the end")
                except httpx.ConnectError:
                    pass
        assert answers == [200] * 4
        assert await front.ended() == "Stopped"


async def a_stream_whose_replica_is_killed_is_seen_to_break_off(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, replicas=1, token_rate=20) as front, client() as http:
        url = await served(front)
        body = {"model": "echo", "prompt": "hi", "max_tokens": 400, "stream": True}
        lines: list[str] = []
        try:
            async with http.stream("POST", f"{url}/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if len(lines) == 3:
                        kill(pids(front)[0])
        except httpx.HTTPError:
            pass
        assert lines
        assert "data: [DONE]" not in lines or any(line.startswith('data: {"error"') for line in lines)


async def servers_that_nobody_wants_are_taken_out_and_doubles_are_not_made(folder: Path, setup: Setup) -> None:
    async with make_front(folder, setup, replicas=1) as front:
        await served(front)
        (replica,) = front.fleet.urls
        for _ in range(3):
            again = await control(front, "POST", "/workers", {"url": replica, "model_id": "echo"})
            assert again.status in (202, 409)
        # The router takes whatever answers /health; its own URL does.
        assert (await control(front, "POST", "/workers", {"url": front.url, "model_id": "echo"})).status == 202
        with anyio.fail_after(GUARD):
            while await listed(front) == [replica]:  # noqa: ASYNC110 - a process is not an event
                await anyio.sleep(0.01)
            while await listed(front) != [replica]:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def in_flight(front: Front) -> int:
    """Requests that the echo servers say are in flight."""
    async with client() as http:
        return sum([(await http.get(f"{url}/health")).json()["in_flight"] for url in front.fleet.urls])


Claim = Callable[[Path, Setup], Awaitable[None]]
ALL: tuple[Claim, ...] = (
    one_url_names_the_model_and_streams,
    three_keys_open_three_doors,
    a_replica_killed_under_load_costs_no_outsider_an_answer,
    a_rolling_restart_under_load_refuses_nobody,
    a_router_that_dies_is_back_at_the_same_url_with_all_replicas,
    what_is_in_flight_when_it_ends_is_answered_and_nothing_new_is_taken,
    a_stream_whose_replica_is_killed_is_seen_to_break_off,
    servers_that_nobody_wants_are_taken_out_and_doubles_are_not_made,
)
