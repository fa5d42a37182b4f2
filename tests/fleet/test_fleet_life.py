"""Whole fleets on virtual time: replicas crash, hang, drain and restart, and callers notice nothing but time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.errors import Draining, StartFailed, StokerError
from lifecycle.fleet.chart import FLEET
from lifecycle.journal import Kind, of_chart, read_journal, replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from lifecycle.service import Replica, Service
from lifecycle.testing import Life, run_virtual
from tests.effort import TIMES
from tests.fleet.simulated_fleet import FleetWorld

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
LOOPS = st.sampled_from(["asyncio", "trio"])


def lives(draw: random.Random) -> list[Life]:
    """What the first processes do: most get ready and serve for a while, some never do, some hang, some die."""
    found = []
    for number in range(draw.randint(2, 12)):  # each with a code of its own: the same end twice is given up
        ready = draw.choice([0.1, 0.5, 2.0])
        end = ready + draw.uniform(0.1, 30.0)
        reply = draw.choice([0.0, 0.05, 0.5])
        kind = draw.choice(["lives", "lives", "dies", "dies", "hangs", "deaf", "never", "503"])
        found.append(
            {
                "lives": Life(ready=ready, reply=reply),
                "dies": Life(ready=ready, reply=reply, exits=end, code=number + 1),
                "hangs": Life(ready=ready, reply=reply, wedged=end),
                "deaf": Life(ready=ready, reply=reply, deaf=end),
                "never": Life(listens=None, ready=None, exits=draw.choice([None, 1.0]), code=number + 1),
                "503": Life(ready=ready, reply=reply, dead=end),
            }[kind]
        )
    return [*found, Life(ready=0.5, reply=0.05)]


@settings(max_examples=25 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32), backend=LOOPS, replicas=st.integers(1, 5), cap=st.sampled_from([None, 1, 3]),
    data=st.data(),
)  # fmt: skip
def test_every_request_is_answered_once_whatever_becomes_of_the_replicas(
    seed: int, backend: str, replicas: int, cap: int | None, data: st.DataObject
) -> None:
    draw = random.Random(seed)
    min_healthy = data.draw(st.integers(1, replicas))
    requests = 200
    codes = cycle(range(20, 100))  # two alike in a row would be a start that fails in the very same way again

    async def body() -> None:
        world = FleetWorld(lives(draw), replicas=replicas, min_healthy=min_healthy, cap=cap, max_attempts=30)
        fleet = world.fleet

        async def trouble() -> None:
            while True:
                await anyio.sleep(draw.choice([0.0, 0.01, 0.3, 2.0]))
                world.check()
                victim = draw.randrange(replicas)
                match draw.choice(["crash", "crash", "stop", "hang", "roll", "look"]):
                    case "crash":
                        world.crash(victim, next(codes))
                    case "hang" if (process := world.process(victim)) is not None:
                        process.become_wedged()
                    case "roll":
                        with anyio.move_on_after(draw.uniform(0, 20)):
                            await fleet.rolling_restart()
                    case "look":
                        await fleet.load()

        async with fleet, anyio.create_task_group() as group:
            group.start_soon(trouble)
            await world.ask_many(requests, workers=draw.choice([1, 4, 20]), gap=draw.choice([0.0, 0.5]))
            group.cancel_scope.cancel()
        assert await fleet.ended() == "Stopped"
        world.check_end(requests)
        assert world.unanswered == []

    run_virtual(body, backend=backend, seed=seed)


@settings(max_examples=20 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), backend=LOOPS, replicas=st.integers(1, 4), data=st.data())
def test_a_fleet_that_is_given_up_or_stopped_leaves_nothing_and_tells_every_caller(
    seed: int, backend: str, replicas: int, data: st.DataObject
) -> None:
    draw = random.Random(seed)
    min_healthy = data.draw(st.integers(1, replicas))
    end = data.draw(st.sampled_from(["stop", "kill", "cancel", "leave", "stop within", "none"]))

    async def body() -> None:
        world = FleetWorld(lives(draw)[:-1], replicas=replicas, min_healthy=min_healthy, max_attempts=2)
        fleet = world.fleet

        async def ending(scope: anyio.CancelScope) -> None:
            await anyio.sleep(draw.uniform(0, 15))
            match end:
                case "stop":
                    await fleet.stop()
                case "stop within":
                    await fleet.stop(100.0)
                    await fleet.stop(1.0)
                case "kill":
                    await fleet.stop()
                    await fleet.kill()
                case "cancel":
                    scope.cancel()

        async with anyio.create_task_group() as callers:
            with anyio.CancelScope() as scope:
                async with fleet:
                    callers.start_soon(world.ask_many, 60, 10, 0.2)
                    callers.start_soon(ending, scope)
                    if end == "leave":
                        await anyio.sleep(draw.uniform(0, 10))
                    else:
                        with anyio.move_on_after(500):
                            await fleet.ended()
        world.check_end(60)
        if fleet.state == "Failed":
            assert fleet.diagnosis is not None
            assert f"min_healthy = {min_healthy}" in fleet.diagnosis.summary
        for said in world.unanswered:
            assert isinstance(said, (StartFailed, Draining)), said

    run_virtual(body, backend=backend, seed=seed)


async def in_world(world: FleetWorld, do: Callable[[], Awaitable[None]]) -> None:
    async with world.fleet:
        await do()
    world.errors += world.host.ledger.violations
    assert not world.errors, world.errors
    assert world.host.held() == ()


@both
def test_a_fleet_is_healthy_with_min_healthy_replicas_and_starting_with_fewer(backend: str) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=at) for at in (1.0, 2.0, 3.0)] + [Life(ready=1.0)], replicas=3, min_healthy=2)
        began = anyio.current_time()

        async def do() -> None:
            assert len(await world.fleet.healthy()) == 2
            assert round(anyio.current_time() - began) == 2
            await anyio.sleep(2)
            world.crash(0)
            await anyio.sleep(0.1)
            assert world.fleet.state == "Healthy"
            world.crash(1)
            await anyio.sleep(0.1)
            assert world.fleet.state == "Starting"
            assert world.fleet.waiting_for.startswith("1 of 3 Healthy; simulated-0 Backoff; simulated-1 Backoff")
            await world.ask(0)
            assert isinstance(world.outcomes[0][0], dict), "one that is left takes requests"
            await world.fleet.healthy()

        await in_world(world, do)

    run_virtual(body, backend=backend)


@both
def test_what_was_in_flight_at_a_replica_that_dies_goes_to_another_at_once(backend: str) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=0.1, reply=1.0)], replicas=2, min_healthy=2, backoff_initial=50.0)

        async def do() -> None:
            await world.fleet.healthy()
            began = anyio.current_time()
            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(world.ask, number)
                await anyio.sleep(0.5)
                assert [slot.replica.gate.in_flight for slot in world.fleet.slots] == [5, 5]
                world.crash(0)
            assert world.unanswered == []
            assert anyio.current_time() - began < 1.6
            assert 0 < world.fleet.client.retries <= 5, "only those that were in flight there are sent again"

        await in_world(world, do)

    run_virtual(body, backend=backend)


@both
def test_a_request_of_which_no_attempt_can_succeed_uses_up_its_budget_and_no_more(backend: str) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=0.1)], replicas=3, min_healthy=3, max_retries=4)

        async def do() -> None:
            await world.fleet.healthy()
            for number in range(3):
                process = world.process(number)
                assert process is not None
                process.life = Life(status=500)
            with pytest.raises(StokerError, match="attempt 5 of 5"):
                await world.fleet.complete({"prompt": "x"})
            assert sorted(world.reached.values()) == [1, 2, 2], "each replica is tried before one is tried again"

        await in_world(world, do)

    run_virtual(body, backend=backend)


@both
def test_a_fleet_is_given_up_when_too_few_replicas_are_left_and_says_which_was_the_last_and_why(backend: str) -> None:
    async def body() -> None:
        dead = Life(ready=None, exits=1.0, code=7, says=((0.5, "no such thing"),))
        world = FleetWorld([Life(ready=0.1), dead], replicas=3, min_healthy=2, max_attempts=1)
        async with world.fleet as fleet:
            with pytest.raises(StartFailed, match=r"simulated-[012]: .*1 of 3 replicas left, min_healthy = 2"):
                await fleet.healthy()
            with pytest.raises(StartFailed, match="exited with code 7"):
                await fleet.complete({"prompt": "x"})
            assert await fleet.ended() == "Failed"
        assert world.host.held() == ()

    run_virtual(body, backend=backend)


@both
def test_a_rolling_restart_replaces_each_replica_once_and_never_two_at_a_time(backend: str) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=1.0, reply=0.1)], replicas=4, min_healthy=3)
        fewest = 4

        def count(*_: object) -> None:
            nonlocal fewest
            fewest = min(fewest, len(world.fleet.urls))

        async def do() -> None:
            nonlocal fewest
            await world.fleet.healthy()
            await world.fleet.dispatch.until(lambda: len(world.fleet.urls) == 4)
            before = [slot.replica for slot in world.fleet.slots]
            world.fleet.journal.listen(count)
            async with anyio.create_task_group() as group:
                group.start_soon(world.ask_many, 300, 8)
                await world.fleet.rolling_restart()
            assert fewest == 3
            assert world.unanswered == []
            assert world.fleet.client.retries == 0
            assert world.fleet.starts == 8
            assert not set(map(id, before)) & {id(slot.replica) for slot in world.fleet.slots}
            assert world.fleet.state == "Healthy"

        await in_world(world, do)

    run_virtual(body, backend=backend)


@both
def test_a_replica_that_does_not_come_back_ends_the_rolling_restart_and_not_the_fleet(backend: str) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=0.1)] * 3 + [Life(ready=None, exits=0.5)], replicas=3, max_attempts=1)

        async def do() -> None:
            await world.fleet.dispatch.until(lambda: len(world.fleet.urls) == 3)
            with pytest.raises(StartFailed):
                await world.fleet.rolling_restart()
            assert [slot.replica.state for slot in world.fleet.slots] == ["Failed", "Healthy", "Healthy"]
            assert world.fleet.state == "Healthy"
            world.host.lives.append(Life(ready=0.1))
            await world.fleet.rolling_restart()
            assert len(world.fleet.urls) == 3, "one that was given up is replaced as well"

        await in_world(world, do)

    run_virtual(body, backend=backend)


@both
def test_a_fleet_that_is_stopped_in_the_middle_of_a_rolling_restart_starts_nothing_more(backend: str) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=0.1, reply=3.0)], replicas=3)

        async def stop() -> None:
            await anyio.sleep(1)
            await world.fleet.stop()

        async with world.fleet as fleet, anyio.create_task_group() as group:
            await fleet.dispatch.until(lambda: len(fleet.urls) == 3)
            for number in range(3):
                group.start_soon(world.ask, number)
            group.start_soon(stop)
            await anyio.sleep(0.1)
            with pytest.raises(Draining):
                await fleet.rolling_restart()
            assert await fleet.ended() == "Stopped"
        assert fleet.starts == 3
        world.check_end(3)
        assert world.unanswered == [], "what was in flight has been drained"

    run_virtual(body, backend=backend)


@both
@pytest.mark.parametrize("seed", range(3))
def test_one_of_all_replicas_compiles_and_the_others_wait_for_it(backend: str, seed: int) -> None:
    async def body() -> None:
        world = FleetWorld([Life(ready=3.0)], replicas=8, min_healthy=8, compiles="cache", startup_timeout=10.0)
        began = anyio.current_time()

        async def do() -> None:
            await world.fleet.healthy()
            assert round(anyio.current_time() - began) == 6
            assert len([hold for hold in world.host.ledger.holds if hold.kind == "lock"]) == 1

        await in_world(world, do)

    run_virtual(body, backend=backend, seed=seed)


@both
def test_all_journals_are_in_one_file_and_each_replays_to_its_end(backend: str, tmp_path: Path) -> None:
    async def body() -> FleetWorld:
        world = FleetWorld([Life(ready=0.1)], replicas=2, journal=tmp_path / "journal.jsonl", name="pair")
        async with world.fleet as fleet:
            await fleet.healthy()
            await fleet.rolling_restart()
        return world

    world = run_virtual(body, backend=backend)
    records = list(read_journal(tmp_path / "journal.jsonl"))
    assert {record.server for record in records} == {"pair", "pair-0", "pair-1"}
    assert len(records) == len(world.records)
    stands = replay(of_chart(records, SERVER.name), SERVER, EVENTS, Facts)
    assert {name: stand.state for name, stand in stands.items()} == {"pair-0": "Stopped", "pair-1": "Stopped"}
    assert {record.server for record in of_chart(records, FLEET.name)} == {"pair"}
    assert sum(record.kind is Kind.BEGIN for record in records) == 5


def test_servers_and_fleets_are_what_the_protocols_ask_for() -> None:
    """mypy says so: a server fits a slot and serves, a fleet serves."""
    world = FleetWorld([Life()], replicas=1)
    replica: Replica = world.server(0)
    services: tuple[Service, ...] = (world.server(0), world.fleet)
    assert replica.state == "Idle"
    assert [service.state for service in services] == ["Idle", "Idle"]
