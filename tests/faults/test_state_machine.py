"""What state machines do to asyncio's tasks elsewhere: swallow a cancellation, drop an order, run it twice, cancel the
task of somebody else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio.lowlevel
import pytest

from lifecycle.driver import Disposition
from lifecycle.errors import Draining
from lifecycle.journal import Kind
from lifecycle.server_facts import Stop
from tests.served import GUARD, fake, healthy

pytestmark = pytest.mark.anyio


@pytest.mark.fault(99)
async def test_a_limit_around_a_wait_is_kept_and_the_server_lives_on(tmp_path: Path) -> None:
    async with fake(tmp_path, {"no_bind": True}) as server:
        await server.driver.wait("Starting")
        after = False
        with anyio.move_on_after(0.1) as scope:
            await server.healthy()
            after = True
        assert scope.cancelled_caught
        assert not after, "what follows the wait is not run"
        assert server.state == "Starting"


@pytest.mark.fault(101)
async def test_of_many_orders_at_once_one_is_the_transition_and_the_others_are_told_what_theirs_was(
    tmp_path: Path,
) -> None:
    async with fake(tmp_path) as server:
        await healthy(server)
        told: Counter[Disposition] = Counter()

        async def order() -> None:
            told[await server.driver.send(Stop())] += 1

        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(order)
        stops = Counter(record.kind for record in server.journal.records if record.event == "Stop")
    assert stops[Kind.TRANSITION] == 1
    assert stops.total() == told.total() == 5
    assert told[Disposition.TAKEN] == stops[Kind.TRANSITION] + stops[Kind.INTERNAL]


@pytest.mark.fault(102)
async def test_an_order_cancels_no_task_of_whoever_waits(tmp_path: Path) -> None:
    ended: list[str] = []

    async with fake(tmp_path, {"no_bind": True}) as server:

        async def wait() -> None:
            with pytest.raises(Draining):
                await server.healthy()
            await anyio.lowlevel.checkpoint()  # a task that was cancelled would end here
            ended.append("went on")

        with anyio.fail_after(GUARD):
            await server.driver.wait("Starting")
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await server.stop()
    assert ended == ["went on"] * 3
