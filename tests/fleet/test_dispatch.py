"""Which replica gets a request, and who waits."""

from __future__ import annotations

import random
from math import inf

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.diagnosis import Diagnosis
from lifecycle.errors import Draining, StartFailed
from lifecycle.fleet.dispatch import Dispatch
from lifecycle.fleet.facts import FleetFacts
from lifecycle.gate import STRIKES, Entry, Gate
from lifecycle.server_facts import Facts
from lifecycle.testing import run_virtual
from tests.effort import TIMES

pytestmark = pytest.mark.anyio
GUARD = 20.0


def opened(dispatch: Dispatch, count: int) -> list[Gate]:
    gates = [Gate(f"replica-{number}") for number in range(count)]
    for gate in gates:
        dispatch.add(gate)
        gate.follow("Healthy", Facts(model="m"), f"http://127.0.0.1:{gate.label[-1]}")
    return gates


def enter(gate: Gate) -> Entry:
    return gate.entered(anyio.CancelScope()).__enter__()


async def test_requests_that_come_one_by_one_are_spread_evenly() -> None:
    dispatch = Dispatch("fleet")
    gates = opened(dispatch, 5)
    sent = [(await dispatch.pass_through()).gate for _ in range(50)]
    assert [sent.count(gate) for gate in gates] == [10] * 5


async def test_the_least_loaded_one_is_next() -> None:
    dispatch = Dispatch("fleet")
    gates = opened(dispatch, 3)
    for gate, load in zip(gates, (3, 1, 2), strict=True):
        for _ in range(load):
            enter(gate)
    assert (await dispatch.pass_through()).gate is gates[1]


async def test_a_replica_that_comes_back_does_not_make_up_for_what_it_has_missed() -> None:
    dispatch = Dispatch("fleet")
    gates = opened(dispatch, 2)
    gates[0].follow("Backoff", Facts(), "")
    for _ in range(100):
        await dispatch.pass_through()
    gates[0].follow("Healthy", Facts(model="m"), "http://127.0.0.1:9")
    sent = [(await dispatch.pass_through()).gate for _ in range(20)]
    assert sent.count(gates[0]) in (10, 11)


async def test_a_request_that_is_sent_again_goes_elsewhere_although_the_one_that_failed_has_less_to_do() -> None:
    dispatch = Dispatch("fleet")
    gates = opened(dispatch, 2)
    enter(gates[1])
    assert (await dispatch.pass_through()).gate is gates[0]
    assert (await dispatch.pass_through([gates[0]])).gate is gates[1]
    assert (await dispatch.pass_through(gates)).gate is gates[0], "where all have failed, the least loaded"


async def test_a_replica_that_answers_nothing_is_left_alone_for_a_while_and_then_tried_again() -> None:
    dispatch = Dispatch("fleet")
    bad, good = opened(dispatch, 2)
    inside = enter(good)
    for _ in range(STRIKES):
        assert (await dispatch.pass_through()).gate is bad, "it has less to do"
        bad.failed()
    assert [(await dispatch.pass_through()).gate for _ in range(5)] == [good] * 5
    good.follow("Backoff", Facts(), "")
    assert (await dispatch.pass_through()).gate is bad, "better than none"
    good.follow("Healthy", Facts(), "http://127.0.0.1:2")
    bad.served()
    assert (await dispatch.pass_through()).gate is bad
    bad.look = lambda: None
    bad.doubt()
    assert (await dispatch.pass_through()).gate is good, "who may have gone is not sent anything"
    bad.trust()
    assert (await dispatch.pass_through()).gate is bad
    inside.__exit__()


@settings(max_examples=20 * TIMES, deadline=None)
@given(seed=st.integers(0, 2**32), backend=st.sampled_from(["asyncio", "trio"]))
def test_a_replica_that_fails_at_once_gets_few_requests_although_it_is_never_loaded(seed: int, backend: str) -> None:
    async def body() -> None:
        dispatch = Dispatch("fleet")
        bad, *_ = opened(dispatch, 4)
        failures = 0

        async def ask() -> None:
            nonlocal failures
            tried: list[Gate] = []
            while True:
                gate = (await dispatch.pass_through(tried)).gate
                with gate.entered(anyio.CancelScope()):
                    if gate is not bad:
                        await anyio.sleep(0.5)
                        gate.served()
                        return
                    await anyio.sleep(0.001)
                    gate.failed()
                    failures += 1
                tried.append(gate)
                await dispatch.pause(10.0, tried)

        async def work() -> None:
            for _ in range(50):
                await ask()

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(work)
        assert failures < 300, "of 1500 requests"
        assert bad.strikes == failures

    run_virtual(body, backend=backend, seed=seed)


async def test_a_pause_is_none_where_another_replica_has_room_and_is_one_where_none_has() -> None:
    dispatch = Dispatch("fleet", cap=1)
    gates = opened(dispatch, 2)
    with anyio.fail_after(GUARD):
        await dispatch.pause(3600, [gates[0]])
        enter(gates[1])
        await dispatch.pause(0.001, [gates[0]])
    with anyio.move_on_after(0.05) as short:
        await dispatch.pause(3600, [gates[0]])
    assert short.cancelled_caught, "one that is full is not one to go to: the attempt would be lost on the first"


async def test_a_pause_ends_when_another_replica_opens() -> None:
    dispatch = Dispatch("fleet")
    (gate,) = opened(dispatch, 1)
    other = Gate("other")
    dispatch.add(other)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            group.start_soon(dispatch.pause, 3600, [gate])
            await anyio.lowlevel.checkpoint()
            other.follow("Healthy", Facts(), "http://127.0.0.1:9")


async def test_who_waits_is_told_when_the_fleet_ends_and_why() -> None:
    for facts, error in (
        (FleetFacts(stopping=True), Draining),
        (FleetFacts(diagnosis=Diagnosis("exited", "all have gone")), StartFailed),
    ):
        dispatch = Dispatch("fleet")
        told: list[type[Exception]] = []

        async def ask(dispatch: Dispatch = dispatch, told: list[type[Exception]] = told) -> None:
            try:
                await dispatch.pass_through()
            except (Draining, StartFailed) as found:
                told.append(type(found))

        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask)
                while dispatch.waiting < 3:
                    await anyio.lowlevel.checkpoint()
                dispatch.follow("Draining", facts)
        assert told == [error] * 3


async def test_a_turn_that_its_owner_does_not_live_to_take_goes_to_the_next() -> None:
    dispatch = Dispatch("fleet", cap=1)
    (gate,) = opened(dispatch, 1)
    inside = enter(gate)
    got: list[int] = []

    async def ask(number: int, scope: anyio.CancelScope) -> None:
        with scope:
            leave = await dispatch.pass_through()
            got.append(number)
            enter(leave.gate).__exit__()

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            scopes = [anyio.CancelScope(), anyio.CancelScope()]
            for number, scope in enumerate(scopes):
                group.start_soon(ask, number, scope)
                while dispatch.waiting <= number:
                    await anyio.lowlevel.checkpoint()
            inside.__exit__()
            scopes[0].cancel()
    assert got in ([1], [0, 1]), "the first was cancelled after it was given its turn, or before"


STEPS = st.sampled_from(["ask", "ask", "ask", "end", "end", "complain", "serve", "close", "open", "cancel", "remove"])


@settings(max_examples=60 * TIMES, deadline=None)
@given(
    seed=st.integers(0, 2**32), backend=st.sampled_from(["asyncio", "trio"]), replicas=st.integers(1, 4),
    cap=st.sampled_from([None, 1, 2]), steps=st.lists(STEPS, max_size=80),
)  # fmt: skip
def test_caps_hold_the_least_loaded_is_taken_and_nobody_waits_while_there_is_room(
    seed: int, backend: str, replicas: int, cap: int | None, steps: list[str]
) -> None:
    draw = random.Random(seed)

    async def body() -> None:
        dispatch = Dispatch("fleet", cap)
        gates = opened(dispatch, replicas)
        inside: list[tuple[Gate, Entry]] = []
        scopes: set[anyio.CancelScope] = set()

        def room(gate: Gate, *, again: bool) -> float:
            return min(gate.room(again=again), (inf if cap is None else cap) - gate.in_flight)

        async def ask(tried: list[Gate], scope: anyio.CancelScope) -> None:
            with scope:
                leave = await dispatch.pass_through(tried)
                gate, fits = leave.gate, [one for one in gates if room(one, again=bool(tried)) > 0]
                assert gate in fits
                better = [one for one in fits if (one in tried) < (gate in tried)]
                assert not better, "one that it has not tried has room"
                same = [one for one in fits if (one in tried) == (gate in tried)]
                assert gate.in_flight == min(one.in_flight for one in same)
                inside.append((gate, enter(gate)))
                assert cap is None or gate.in_flight <= cap
                assert gate.limit is None or gate.in_flight <= gate.limit
            scopes.discard(scope)

        async with anyio.create_task_group() as group:
            for step in steps:
                gate = draw.choice(gates)
                match step:
                    case "ask":
                        tried = draw.sample(gates, draw.randrange(len(gates))) if draw.random() < 0.3 else []
                        scope = anyio.CancelScope()
                        scopes.add(scope)
                        group.start_soon(ask, tried, scope)
                    case "end" | "complain" | "serve" if inside:
                        where, entry = inside.pop(draw.randrange(len(inside)))
                        if step == "complain":
                            where.overloaded()
                        elif step == "serve":
                            where.served()
                        entry.__exit__()
                    case "close":
                        gate.follow("Backoff", Facts(), "")
                    case "open":
                        gate.follow("Healthy", Facts(model="m"), "http://127.0.0.1:9")
                    case "cancel" if scopes:
                        draw.choice(sorted(scopes, key=id)).cancel()
                    case "remove" if len(gates) > 1:
                        dispatch.remove(gate)
                        gates.remove(gate)
                if draw.random() < 0.5:
                    await anyio.sleep(0.001)
                    if dispatch.waiting:
                        assert all(room(one, again=True) <= 0 for one in gates), "somebody waits, and there is room"
            await anyio.sleep(0.001)
            for one in gates:
                one.follow("Healthy", Facts(model="m"), "http://127.0.0.1:9")
            while scopes or inside:
                while inside:
                    inside.pop()[1].__exit__()
                await anyio.sleep(0.001)
        assert dispatch.in_flight == dispatch.waiting == 0

    run_virtual(body, backend=backend, seed=seed, limit=100)
