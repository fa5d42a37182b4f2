"""Never more at work than the limit of the moment, nobody overtaken, no slot lost to a cancelled task."""

from __future__ import annotations

import random
from collections import defaultdict

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.batch.slots import Slots

pytestmark = pytest.mark.anyio


class Crowd:
    """Tasks that come in, one after the other, and stay until they are told to go."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.came: list[int] = []
        self.waiting: set[int] = set()
        self.inside: set[int] = set()
        self.go: defaultdict[int, anyio.Event] = defaultdict(anyio.Event)
        self.scopes: dict[int, anyio.CancelScope] = {}

    async def one(self, name: int) -> None:
        self.waiting.add(name)
        try:
            with anyio.CancelScope() as self.scopes[name]:
                await self.stay(name)
        finally:
            self.waiting.discard(name)

    async def stay(self, name: int) -> None:
        async with self.slots:
            self.waiting.remove(name)
            self.came.append(name)
            self.inside.add(name)
            try:
                await self.go[name].wait()
            finally:
                self.inside.discard(name)

    async def come(self, group: TaskGroup, *names: int) -> None:
        """They come in this order: trio starts tasks in any."""
        for name in names:
            group.start_soon(self.one, name)
            await self.settle()

    async def settle(self) -> None:
        await anyio.wait_all_tasks_blocked()
        assert len(self.inside) == self.slots.in_use


async def test_as_many_as_the_limit_are_in_and_the_others_follow_in_the_order_they_came() -> None:
    crowd = Crowd(Slots(2))
    async with anyio.create_task_group() as group:
        await crowd.come(group, *range(6))
        assert crowd.inside == {0, 1}
        assert crowd.slots.waiting == 4
        for name in (1, 0, 3, 2, 4, 5):
            crowd.go[name].set()
            await crowd.settle()
    assert crowd.came == [0, 1, 2, 3, 4, 5]
    assert crowd.slots.in_use == 0


async def test_a_higher_limit_lets_in_at_once_as_many_as_there_is_room_for() -> None:
    crowd = Crowd(Slots(1))
    async with anyio.create_task_group() as group:
        await crowd.come(group, *range(6))
        crowd.slots.limit = 4
        await crowd.settle()
        assert crowd.inside == {0, 1, 2, 3}
        group.cancel_scope.cancel()
    assert (crowd.slots.in_use, crowd.slots.waiting) == (0, 0)


async def test_a_lower_limit_sends_nobody_away_and_lets_nobody_in_until_enough_have_left() -> None:
    crowd = Crowd(Slots(4))
    async with anyio.create_task_group() as group:
        await crowd.come(group, *range(6))
        crowd.slots.limit = 2
        await crowd.settle()
        assert crowd.inside == {0, 1, 2, 3}
        for name, inside in ((0, {1, 2, 3}), (1, {2, 3}), (2, {3, 4}), (3, {4, 5})):
            crowd.go[name].set()
            await crowd.settle()
            assert crowd.inside == inside
        group.cancel_scope.cancel()


async def test_whoever_comes_while_others_wait_does_not_overtake_them() -> None:
    slots = Slots(1)
    order: list[str] = []

    async def waits(name: str) -> None:
        async with slots:
            order.append(name)

    async with anyio.create_task_group() as group:
        async with slots:
            group.start_soon(waits, "first")
            await anyio.wait_all_tasks_blocked()
        async with slots:  # the slot is free for a moment, but it is the other's
            order.append("second")
    assert order == ["first", "second"]


async def test_a_slot_handed_to_a_task_that_is_cancelled_in_the_same_moment_goes_to_the_next() -> None:
    crowd = Crowd(Slots(1))
    async with anyio.create_task_group() as group:
        await crowd.come(group, *range(3))
        crowd.slots.limit = 2  # hands a slot to 1
        crowd.scopes[1].cancel()
        await crowd.settle()
        assert crowd.inside == {0, 2}
        group.cancel_scope.cancel()


async def test_an_error_inside_gives_the_slot_back() -> None:
    slots = Slots(1)
    with pytest.raises(ZeroDivisionError):
        async with slots:
            raise ZeroDivisionError
    assert slots.in_use == 0


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_refused_and_changes_nothing(limit: int) -> None:
    slots = Slots(3)
    with pytest.raises(ValueError, match=f"limit = {limit} must be at least 1"):
        slots.limit = limit
    assert slots.limit == 3


STEPS = st.lists(st.tuples(st.sampled_from(["come", "go", "cancel", "limit"]), st.integers(1, 5)), max_size=40)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(steps=STEPS, seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_whatever_happens_in_whatever_order_the_limit_holds_and_nobody_waits_beside_a_free_slot(
    backend: str, steps: list[tuple[str, int]], seed: int
) -> None:
    roll = random.Random(seed)

    async def live() -> None:
        crowd = Crowd(Slots(2))
        slots = crowd.slots
        names = 0
        async with anyio.create_task_group() as group:
            for what, number in steps:
                before = len(crowd.inside)
                if what == "come":
                    await crowd.come(group, *range(names, names + number))
                    names += number
                elif what == "limit":
                    slots.limit = number
                else:
                    here = sorted(crowd.inside if what == "go" else crowd.waiting | crowd.inside)
                    for name in roll.sample(here, min(number, len(here))):
                        crowd.go[name].set() if what == "go" else crowd.scopes[name].cancel()
                await crowd.settle()
                assert slots.in_use <= max(slots.limit, before)
                assert not (slots.waiting and slots.in_use < slots.limit)
                assert slots.waiting == len(crowd.waiting)
                assert not crowd.waiting or min(crowd.waiting) > max(crowd.came), "nobody was overtaken"
            group.cancel_scope.cancel()
        assert (slots.in_use, slots.waiting) == (0, 0)

    anyio.run(live, backend=backend)
