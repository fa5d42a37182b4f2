"""The end of a server whose time is limited from outside: requests in flight and the process get what there is, and a
limit that is said again holds from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.config import ServerConfig
from lifecycle.ending import LEAST_GRACE, for_work, limits
from lifecycle.errors import Draining
from lifecycle.journal import Kind, replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts, Stop
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
HELLO: dict[str, Any] = {"messages": []}
FOREVER = 1e6
times = st.floats(0, 1e4)


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.5)


def drain(backend: str, asked: Sequence[tuple[float, Stop]], life: Life, **settings: Any) -> tuple[float, float, bool]:
    """Ask a server with a request in flight to end, each time so many seconds after the last; seconds from the first of
    these until the drain was over, until the process had gone, and whether the request was answered."""

    async def body() -> tuple[float, float, bool]:
        world = World(life, **settings)
        answered = False
        async with world.server as server, anyio.create_task_group() as group:
            await server.healthy()

            async def ask() -> None:
                nonlocal answered
                try:
                    await server.chat(HELLO)
                    answered = True
                except Draining:
                    pass

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            began = anyio.current_time()
            for pause, event in asked:
                await anyio.sleep(pause)
                server.driver.post(event)
            await server.ended()
            gone = anyio.current_time() - began
        world.check_end()
        stands = replay(world.records, SERVER, EVENTS, Facts)
        assert {stand.facts for stand in stands.values()} == {server.driver.facts}
        (drained,) = [r.time for r in world.records if r.kind is Kind.PHASE and r.detail.get("phase") == "drained"]
        stopped = next(r.time for r in world.records if r.event == "Stop")
        return drained - stopped, gone, answered

    return run_virtual(body, backend=backend, limit=1e7)


@both
def test_a_stop_with_limits_drains_for_as_long_as_they_say_whatever_is_configured(backend: str) -> None:
    drained, gone, answered = drain(backend, [(0, Stop(60.0, 90.0))], Life(reply=50.0), drain_timeout=5.0)
    assert (drained, gone, answered) == (near(50), near(50), True)


@both
def test_a_limit_that_comes_nearer_cuts_what_is_in_flight(backend: str) -> None:
    asked = [(0, Stop(600.0, 900.0)), (10, Stop(7.0, 20.0))]
    drained, _, answered = drain(backend, asked, Life(reply=FOREVER))
    assert (drained, answered) == (near(17), False)


@both
def test_a_limit_that_moves_away_gives_what_is_in_flight_more_time(backend: str) -> None:
    asked = [(0, Stop(18.0, 27.0)), (5, Stop(500.0, 600.0))]
    drained, _, answered = drain(backend, asked, Life(reply=400.0))
    assert (drained, answered) == (near(400), True)


@both
def test_a_stop_that_says_no_limit_leaves_the_earlier_one(backend: str) -> None:
    drained, _, answered = drain(backend, [(0, Stop(60.0, 90.0)), (1, Stop())], Life(reply=FOREVER))
    assert (drained, answered) == (near(60), False)


@both
def test_a_process_that_obeys_nothing_is_killed_when_the_limit_comes_nearer_while_it_is_ending(backend: str) -> None:
    asked = [(0, Stop(1.0, 500.0)), (100, Stop(0.0, 10.0))]
    _, gone, _ = drain(backend, asked, Life(reply=FOREVER, term=None))
    assert gone == near(110 + LEAST_GRACE)


@given(within=times, drain_timeout=st.none() | times, longer=st.none() | times)
def test_limits_lie_within_the_time_that_is_left_and_within_what_is_configured(
    within: float, drain_timeout: float | None, longer: float | None
) -> None:
    terminate = None if longer is None else (drain_timeout or 0.0) + longer
    config = ServerConfig("any", drain_timeout=drain_timeout, terminate_timeout=terminate)
    found = limits(config, within)
    assert 0 <= found.drain <= found.kill <= within + 1e-6
    assert drain_timeout is None or found.drain <= drain_timeout
    assert terminate is None or found.kill <= terminate + 1e-6


def test_without_a_configured_drain_the_time_that_is_left_is_used_not_a_constant() -> None:
    config = ServerConfig("any")
    assert limits(config).drain == 30
    assert [limits(config, within).drain for within in (27, 115, 3600)] == [18, 100, 3585]


@given(within=times, drain_timeout=st.none() | times, longer=st.none() | times)
def test_work_that_goes_on_first_costs_the_drain_nothing(
    within: float, drain_timeout: float | None, longer: float | None
) -> None:
    terminate = None if longer is None else (drain_timeout or 0.0) + longer
    config = ServerConfig("any", drain_timeout=drain_timeout, terminate_timeout=terminate)
    whole = limits(config, within)
    first = for_work(whole)
    rest = limits(config, whole.kill - first)
    assert first + rest.drain == pytest.approx(whole.drain, abs=1e-6)
    assert first + rest.kill <= whole.kill + 1e-6
