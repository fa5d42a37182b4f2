"""Who may send when; and how many at once after the server has said that it has too many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.diagnosis import Diagnosis
from lifecycle.errors import Draining, StartFailed
from lifecycle.gate import Gate
from lifecycle.server_facts import Facts

pytestmark = pytest.mark.anyio
GUARD = 20.0
URL = "http://127.0.0.1:1"


def healthy() -> Gate:
    gate = Gate("test")
    gate.follow("Healthy", Facts(model="m"), URL)
    return gate


class Limited:
    """A server that refuses what comes beyond its capacity, and the requests that go to it through a gate."""

    def __init__(self, gate: Gate, capacity: int) -> None:
        self.gate = gate
        self.capacity = capacity
        self.held = self.peak = self.served = 0
        self.refusals: list[int] = []
        """Of each request that has ended."""

    async def request(self, turns: int = 3) -> None:
        refusals = 0
        while not await self._attempt(turns, tried=[self.gate] * refusals):
            refusals += 1
            await anyio.lowlevel.checkpoint()
        self.refusals.append(refusals)

    async def _attempt(self, turns: int, *, tried: Sequence[Gate]) -> bool:
        await self.gate.pass_through(tried)
        with self.gate.entered(anyio.CancelScope()):
            self.peak = max(self.peak, self.gate.in_flight)
            if self.held >= self.capacity:
                self.gate.overloaded()
                return False
            self.held += 1
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            self.held -= 1
            self.served += 1
            self.gate.served()
            return True


async def flood(server: Limited, requests: int, workers: int) -> None:
    """So many requests, by so many workers at once."""
    left = iter(range(requests))

    async def work() -> None:
        for _ in left:
            await server.request()

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(work)


@pytest.mark.parametrize("capacity", [1, 2, 8])
async def test_no_request_is_refused_more_than_three_times_whatever_the_server_can_take(capacity: int) -> None:
    server = Limited(healthy(), capacity)
    await flood(server, requests=600, workers=64)
    assert server.served == 600
    assert max(server.refusals) <= 3
    assert server.gate.in_flight == 0


async def test_a_complaint_is_learnt_from_but_not_for_ever() -> None:
    server = Limited(healthy(), capacity=2)
    await flood(server, requests=100, workers=16)
    assert server.gate.limit is not None
    assert server.gate.limit < 4
    server.capacity, server.peak = 16, 0
    await flood(server, requests=1000, workers=16)
    assert server.peak == 16


async def test_without_a_complaint_there_is_no_limit() -> None:
    server = Limited(healthy(), capacity=500)
    await flood(server, requests=500, workers=500)
    assert server.peak == 500
    assert server.gate.limit is None


@given(st.lists(st.sampled_from(["enter", "leave", "overloaded", "served"]), max_size=60))
@settings(deadline=None)
async def test_whatever_happens_at_least_one_request_may_be_sent(steps: list[str]) -> None:
    gate = healthy()
    inside = []
    for step in steps:
        if step == "enter":
            context = gate.entered(anyio.CancelScope())
            context.__enter__()
            inside.append(context)
        elif step == "leave" and inside:
            inside.pop().__exit__(None, None, None)
        elif step == "overloaded" and inside:
            gate.overloaded()
        elif step == "served" and inside:
            gate.served()
        assert gate.in_flight == len(inside)
        assert gate.limit is None or gate.limit >= 1
    while inside:
        inside.pop().__exit__(None, None, None)
    with anyio.fail_after(GUARD):
        assert (await gate.pass_through()).url == URL
        assert (await gate.pass_through([gate])).model == "m"


@pytest.mark.parametrize(
    "ask", [lambda gate: gate.opened(), lambda gate: gate.pass_through(), lambda gate: gate.pause(3600)],
    ids=["opened", "pass_through", "pause"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("state", "facts", "error"),
    [
        ("Draining", Facts(stopping=True), Draining),
        ("Stopped", Facts(stopping=True), Draining),
        ("Failed", Facts(diagnosis=Diagnosis("exited", "it exited")), StartFailed),
    ],
)
async def test_who_waits_when_the_server_ends_is_told_at_once(
    ask: Callable[[Gate], Awaitable[object]], state: str, facts: Facts, error: type[Exception]
) -> None:
    gate = Gate("test")
    gate.follow("Starting", Facts(), "")
    refused = []

    async def wait() -> None:
        try:
            await ask(gate)
        except error as found:
            refused.append(str(found))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            gate.follow(state, facts, "")
    assert len(refused) == 2
    assert "test" in refused[0] or "it exited" in refused[0]


async def test_a_restart_refuses_nobody() -> None:
    gate = healthy()
    answers = []
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for state in ("Draining", "Backoff", "Locking", "PortBound", "Starting"):
                gate.follow(state, Facts(diagnosis=Diagnosis("exited", "it exited")), "")

                async def wait() -> None:
                    answers.append(await gate.pass_through())

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                assert answers == []
            gate.follow("Healthy", Facts(model="m"), "http://127.0.0.1:2")
    assert {(leave.url, leave.life) for leave in answers} == {("http://127.0.0.1:2", 2)}


async def test_cut_ends_the_attempts_in_flight_and_no_others() -> None:
    gate = healthy()
    cut = []

    async def attempt(number: int) -> None:
        with anyio.CancelScope() as scope, gate.entered(scope):
            await anyio.sleep_forever()
        cut.append(number)

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(attempt, 1))
            await anyio.wait_all_tasks_blocked()
            gate.cut()
            await gate.empty()
            group.start_soon(partial(attempt, 2))
            await anyio.wait_all_tasks_blocked()
            assert cut == [1]
            gate.cut()
    assert cut == [1, 2]


async def test_a_drain_waits_for_those_who_send_requests_past_the_gate() -> None:
    gate = healthy()
    drained = anyio.Event()

    async def drain() -> None:
        await gate.empty()
        drained.set()

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            gate.hold()
            group.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            assert not drained.is_set()
            gate.let_go()
            await drained.wait()
