"""Groups on simulated hosts and a simulated network: lost hosts, lost and late messages, on virtual time."""

from __future__ import annotations

from random import Random

import anyio
import pytest

from lifecycle.cli.watch import attended
from lifecycle.group.settings import GroupConfig
from lifecycle.testing import Life, run_virtual
from tests.effort import TIMES
from tests.group.simulated_group import GroupWorld
from tests.group.simulated_network import SimulatedNetwork

BACKENDS = ["asyncio", "trio"]
FAULTS = ("exit", "unplug", "reset", "deaf", "slow", "worker")


async def nothing(world: GroupWorld) -> None:
    await world.group.healthy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_on_three_hosts_serves_and_ends_everywhere(backend: str) -> None:
    async def body() -> GroupWorld:
        world = GroupWorld(3, SimulatedNetwork())
        await world.live(nothing, requests=5)
        return world

    world = run_virtual(body, backend=backend, limit=1e5)
    assert world.transitions() == ["Gathering", "Starting", "Healthy", "Draining", "Stopped"]
    assert [worker.state for worker in world.workers] == ["Stopped", "Stopped"]
    assert world.answers == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_that_goes_silent_costs_one_attempt_and_comes_back(backend: str) -> None:
    async def chaos(world: GroupWorld) -> None:
        await world.group.healthy()
        world.network.unplug("host-1")
        await world.group.driver.wait("Backoff")
        assert 0 not in world.alive()
        await anyio.sleep(15)
        assert world.alive() == [], "the other side has found out by itself"
        world.network.plug("host-1")
        await world.group.healthy()

    async def body() -> GroupWorld:
        world = GroupWorld(3, SimulatedNetwork())
        await world.live(chaos, requests=5)
        return world

    world = run_virtual(body, backend=backend, limit=1e5)
    assert world.group.starts == 2
    assert world.answers == 5
    lost = world.seconds("Draining")[0] - world.seconds("Healthy")[0]
    assert lost <= world.meeting.heartbeat_timeout + 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_that_stays_away_ends_the_group_and_every_other_host(backend: str) -> None:
    async def chaos(world: GroupWorld) -> None:
        await world.group.healthy()
        world.network.unplug("host-2")
        await world.group.ended()
        world.network.plug("host-2")

    async def body() -> GroupWorld:
        world = GroupWorld(3, SimulatedNetwork())
        await world.live(chaos)
        return world

    world = run_virtual(body, backend=backend, limit=1e5)
    assert world.group.state == "Failed"
    assert world.group.diagnosis is not None
    assert world.group.diagnosis.cause == "hosts-missing"
    assert "rank 2 of 3" in world.group.diagnosis.summary
    assert [worker.state for worker in world.workers] == ["Failed", "Failed"]


def test_members_start_one_after_the_other_and_the_head_last() -> None:
    async def body() -> GroupWorld:
        world = GroupWorld(4, SimulatedNetwork())
        await world.live(nothing)
        return world

    world = run_virtual(body, limit=1e5)
    launched = [host.processes[0].launched_at for host in world.hosts]
    assert launched == sorted(launched[1:]) + launched[:1] or launched[1] < launched[2] < launched[3] < launched[0]


def test_a_member_that_never_gets_ready_is_given_up_within_the_budget() -> None:
    async def body() -> GroupWorld:
        world = GroupWorld(2, SimulatedNetwork(), lives={0: (Life(ready=None),)}, max_attempts=3)

        async def chaos(world: GroupWorld) -> None:
            await world.group.ended()

        await world.live(chaos)
        return world

    world = run_virtual(body, limit=1e5)
    assert world.group.state == "Failed"
    assert world.group.starts == 3
    assert all(len(host.processes) == 3 for host in world.hosts)


def test_a_request_in_flight_when_a_member_dies_is_answered_by_the_next_attempt() -> None:
    async def chaos(world: GroupWorld) -> None:
        await world.group.healthy()
        await anyio.sleep(5)
        process = world.process(1)
        assert process is not None
        process.exit(1)

    async def body() -> GroupWorld:
        world = GroupWorld(2, SimulatedNetwork(), lives={0: (Life(ready=0.5, reply=8.0),)}, stall_timeout=60.0)
        await world.live(chaos, requests=3)
        return world

    world = run_virtual(body, limit=1e5)
    assert world.answers == 3
    assert world.group.starts == 2
    assert world.group.client.retries == 3


def test_a_stop_that_comes_to_a_host_lets_requests_finish() -> None:
    async def chaos(world: GroupWorld) -> None:
        await world.group.healthy()
        await anyio.sleep(1)
        await world.workers[0].stop()
        await world.group.ended()

    async def body() -> GroupWorld:
        world = GroupWorld(2, SimulatedNetwork(), lives={0: (Life(ready=0.5, reply=3.0),)})
        await world.live(chaos, requests=3)
        return world

    world = run_virtual(body, limit=1e5)
    assert world.answers == 3
    assert world.group.state == world.workers[0].state == "Stopped"


def test_a_head_that_does_not_answer_a_stop_is_left_in_time() -> None:
    async def chaos(world: GroupWorld) -> None:
        await world.group.healthy()
        world.network.unplug("host-0")
        await world.workers[0].stop()
        with anyio.fail_after(60):
            await world.workers[0].ended()
        world.network.plug("host-0")

    async def body() -> GroupWorld:
        world = GroupWorld(2, SimulatedNetwork(), group=GroupConfig(gather_timeout=30.0, heartbeat_timeout=5.0))
        await world.live(chaos)
        return world

    world = run_virtual(body, limit=1e5)
    assert world.workers[0].state == "Stopped"


async def chaos_of(world: GroupWorld, roll: Random) -> None:
    """Faults at random moments on random hosts; at the end all is well again."""
    nodes = len(world.hosts)
    for _ in range(roll.randrange(1, 8)):
        await anyio.sleep(roll.expovariate(1 / 15))
        rank, fault = roll.randrange(nodes), roll.choice(FAULTS)
        process = world.process(rank)
        if fault == "exit" and process is not None:
            process.exit(1)
        elif fault == "unplug":
            world.network.unplug(f"host-{rank}")
            await anyio.sleep(roll.uniform(0, 20))
            world.network.plug(f"host-{rank}")
        elif fault == "reset":
            world.network.reset(f"host-{rank}")
        elif fault == "slow":
            usual, world.network.latency = world.network.latency, lambda: roll.uniform(0, 8)
            await anyio.sleep(roll.uniform(0, 20))
            world.network.latency = usual
        if world.group.state in ("Stopped", "Failed"):
            return


@pytest.mark.parametrize("seed", range(30 * TIMES))
def test_whatever_happens_to_hosts_and_network_nothing_is_left_and_no_request_is_lost(seed: int) -> None:
    roll = Random(seed)
    nodes, budget = roll.randrange(2, 5), roll.choice([2, 100])

    async def body() -> GroupWorld:
        network = SimulatedNetwork(lambda: roll.uniform(0.0, 0.2))
        lives = {
            rank: tuple(
                Life(ready=roll.uniform(0, 3), exits=roll.choice([None, None, roll.uniform(0, 60)]),
                     term=roll.choice([0.0, 1.0, None]), reply=roll.uniform(0, 2))
                for _ in range(8)
            )
            for rank in range(nodes)
        }  # fmt: skip
        lives = {rank: (*each, Life(reply=0.1)) for rank, each in lives.items()}
        world = GroupWorld(nodes, network, lives=lives, max_attempts=budget)
        await world.live(lambda world: chaos_of(world, roll), requests=10)
        return world

    world = run_virtual(body, backend=BACKENDS[seed % 2], seed=seed, limit=1e5)
    if world.group.state == "Stopped":
        assert world.answers == 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_attempt_does_not_begin_before_a_host_that_was_silent_has_ended_the_one_before(backend: str) -> None:
    """Its connection outlives the silence, so it is there all the time; what it was told lies in the pulled cable."""

    async def chaos(world: GroupWorld) -> None:
        await world.group.healthy()
        world.network.unplug("host-1")
        head = world.process(0)
        assert head is not None
        head.exit(-9)
        await world.group.driver.wait("Gathering", after=world.group.journal.seq)
        await anyio.sleep(5)
        assert world.alive() == [1]
        assert world.group.state == "Gathering"
        assert "the end of " in world.group.waiting_for
        world.network.plug("host-1")
        await world.group.healthy()

    async def body() -> GroupWorld:
        patient = GroupConfig(gather_timeout=100.0, heartbeat_timeout=60.0)
        world = GroupWorld(2, SimulatedNetwork(), group=patient)
        await world.live(chaos, requests=5)
        return world

    world = run_virtual(body, backend=backend, limit=1e5)
    assert world.group.starts == 2
    assert world.answers == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_is_waited_for_and_for_how_long_is_told_on_both_sides(backend: str) -> None:
    """Nobody is ever there: the network of the head is not plugged in."""

    async def body() -> tuple[list[str], list[str]]:
        by_head: list[str] = []
        by_host: list[str] = []
        world = GroupWorld(3, SimulatedNetwork())
        world.network.unplug("host-0")
        worker = world.workers[1]
        async with (
            attended(world.group, anyio.Event(), by_head.append), attended(worker, anyio.Event(), by_host.append),
            world.group, worker,
        ):  # fmt: skip
            await world.group.ended()
            await worker.ended()
        return by_head, by_host

    by_head, by_host = run_virtual(body, backend=backend, limit=1e5)
    limit = "for gather_timeout = 60 s at most"
    assert by_head == [
        f"  Gathering  … for {seconds} s: rank 1, 2 to come to host-0, port 1, {limit}" for seconds in (10, 30)
    ]
    assert [line.partition(";")[0] for line in by_host] == [
        f"  Joining    … for {seconds} s: the head at host-0, port 1, {limit}" for seconds in (10, 30)
    ]
    assert "last seen: no connection within heartbeat_timeout = 5 s" in by_host[0]
