"""A fleet behind a router that fails, or whose replicas do: what outsiders see. The router is the fake one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from lifecycle.errors import Draining, StartFailed
from tests import front_claims
from tests.front_claims import Claim
from tests.fronts import client, complete, fake_router, known, load, make_front, served
from tests.served import GUARD

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("claim", front_claims.ALL, ids=lambda claim: claim.__name__)
async def test_before_the_fake_router(claim: Claim, tmp_path: Path) -> None:
    await claim(tmp_path, fake_router())


async def test_a_router_that_is_slow_and_late_costs_no_outsider_an_answer_in_a_rolling_restart(tmp_path: Path) -> None:
    async with make_front(tmp_path, fake_router(slow=0.3, late=0.3), replicas=2, latency=0.05) as front:
        url = await served(front)
        await known(front, 2)
        async with load(url) as outsiders:
            await outsiders.more(20)
            with anyio.fail_after(3 * GUARD):
                await front.rolling_restart()
            await known(front, 2)
            await outsiders.more(20)
        assert outsiders.bad == []


async def test_a_router_that_refuses_and_forgets_at_first_knows_all_replicas_in_the_end(tmp_path: Path) -> None:
    async with make_front(tmp_path, fake_router(fail=3, forget=2), replicas=2) as front:
        await served(front)
        await known(front, 2)


async def test_a_router_that_cannot_start_is_the_end_of_the_replicas_and_says_why(tmp_path: Path) -> None:
    async with make_front(tmp_path, fake_router(), replicas=1, router={"engine_args": {"bogus": 1}}) as front:
        with anyio.fail_after(GUARD), pytest.raises(StartFailed) as failed:
            await front.healthy()
        assert failed.value.diagnosis.cause == "unknown-flag"
        with anyio.fail_after(GUARD):
            assert await front.ended() == "Failed"
        assert front.fleet.state == "Stopped"


async def test_replicas_that_cannot_start_are_the_end_of_the_router_and_say_why(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"startup_delay": 5.0, "startup_timeout": 0.2, "max_attempts": 1}
    async with make_front(tmp_path, fake_router(), replicas=2, **settings) as front:
        with anyio.fail_after(GUARD), pytest.raises(StartFailed) as failed:
            await front.healthy()
        assert failed.value.diagnosis.cause == "startup-timeout"
        with anyio.fail_after(GUARD):
            assert await front.ended() == "Failed"
        assert front.router.state == "Stopped"


async def test_asked_to_stop_while_it_starts_it_stops(tmp_path: Path) -> None:
    async with make_front(tmp_path, fake_router(), replicas=2, startup_delay=20) as front:
        await front.stop()
        with anyio.fail_after(GUARD), pytest.raises(Draining):
            await front.healthy()
        with anyio.fail_after(GUARD):
            assert await front.ended() == "Stopped"


async def test_killed_it_ends_at_once_whatever_is_in_flight(tmp_path: Path) -> None:
    long: dict[str, Any] = {"drain_timeout": 10 * GUARD, "terminate_timeout": 20 * GUARD}
    async with make_front(tmp_path, fake_router(), replicas=2, token_rate=5, router=long, **long) as front:
        url = await served(front)

        async def ask() -> None:
            async with client() as http:
                with pytest.raises(httpx.HTTPError):
                    await complete(http, url, max_tokens=5000)  # a thousand seconds

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            with anyio.fail_after(GUARD):
                while not await front_claims.in_flight(front):  # noqa: ASYNC110 - a process is not an event
                    await anyio.sleep(0.01)
            await front.stop()
            await front.kill()
            with anyio.fail_after(GUARD):
                assert await front.ended() == "Stopped"


async def test_cancelled_from_outside_it_leaves_nothing(tmp_path: Path) -> None:
    front = make_front(tmp_path, fake_router(), replicas=2)
    with anyio.fail_after(2 * GUARD):
        with anyio.CancelScope() as scope:
            async with front:
                await served(front)
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert front.state == "Stopped"
    assert (front.router.state, front.fleet.state) == ("Stopped", "Stopped")


async def test_an_error_of_the_body_goes_on_as_it_is_after_everything_has_ended(tmp_path: Path) -> None:
    front = make_front(tmp_path, fake_router(), replicas=1)

    async def body() -> None:
        async with front:
            await served(front)
            raise KeyError("mine")

    with anyio.fail_after(2 * GUARD), pytest.raises(KeyError, match="mine"):
        await body()
    assert front.state == "Stopped"
