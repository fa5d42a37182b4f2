"""Replicas at places of a simulated cluster: nodes die and come, servers crash, and no caller loses an answer."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.chart import Event
from lifecycle.config import ServerConfig
from lifecycle.errors import StartFailed
from lifecycle.explore import paths
from lifecycle.fleet.fleet import Fleet
from lifecycle.journal import Record, of_chart, replay
from lifecycle.ray.chart import PLACEMENT
from lifecycle.ray.facts import EVENTS, Lost, PlacementFacts, ServerEnded
from lifecycle.ray.replica import RayReplica
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS as SERVER_EVENTS
from lifecycle.server_facts import Facts
from lifecycle.service import Listener, Replica
from lifecycle.testing import Life, SimulatedHost, run_virtual
from lifecycle.testing.fleet_models import placement_model
from tests.effort import TIMES
from tests.fleet.simulated_cluster import SimulatedCluster
from tests.fleet.simulated_fleet import QUICK

LOOPS = st.sampled_from(["asyncio", "trio"])
both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class ClusterWorld:
    """A real fleet of real `RayReplica`s on a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster, replicas: int, *, timeout: float = 60.0, **more: Any) -> None:
        self.cluster = cluster
        self.records: list[Record] = []

        def make(number: int, config: ServerConfig, listener: Listener) -> Replica:
            return RayReplica(
                config, cluster, {"GPU": 1.0}, timeout=timeout, variables={}, listener=listener
            )

        config = ServerConfig("simulated", **{**QUICK, **more})
        self.fleet = Fleet(
            config, replicas=replicas, adapter=cluster.adapter, make=make, listener=self.records.append
        )
        self.fleet.client._http = httpx.AsyncClient(transport=cluster.host.transport())
        self.answers: list[dict[str, Any]] = []

    async def ask_many(self, requests: int, workers: int, gap: float = 0.0) -> None:
        left = iter(range(requests))

        async def work() -> None:
            for number in left:
                self.answers.append(await self.fleet.complete({"prompt": f"{number}"}))
                await anyio.sleep(gap)

        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(work)

    def check_end(self) -> None:
        """Nothing is held, and the journals of places and servers replay."""
        assert self.cluster.places == []
        assert self.cluster.inside == 0
        assert self.cluster.host.held() == ()
        assert self.cluster.host.ledger.violations == []
        places = replay(of_chart(self.records, "placement"), PLACEMENT, EVENTS, PlacementFacts)
        assert {stand.state for stand in places.values()} <= PLACEMENT.final
        replay(of_chart(self.records, "server"), SERVER, SERVER_EVENTS, Facts)


def in_world(
    body: Callable[[ClusterWorld], Awaitable[None]], nodes: dict[str, int], replicas: int, *, backend: str,
    seed: int = 0, lives: tuple[Life, ...] = (Life(ready=0.5, reply=0.05),), **more: Any,
) -> ClusterWorld:  # fmt: skip
    """Run `body` inside a fleet's life; the world, ended and checked."""
    worlds = []

    async def run() -> None:
        async with anyio.create_task_group() as group:
            world = ClusterWorld(SimulatedCluster(group, SimulatedHost(lives), nodes), replicas, **more)
            worlds.append(world)
            async with world.fleet:
                await body(world)
        world.check_end()

    run_virtual(run, backend=backend, seed=seed)
    return worlds[0]


@settings(max_examples=15 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), backend=LOOPS, replicas=st.integers(1, 4))
def test_every_request_is_answered_once_whatever_becomes_of_the_nodes(seed: int, backend: str, replicas: int) -> None:
    draw = random.Random(seed)
    ends = (draw.uniform(1, 40) for _ in range(draw.randint(0, 4)))
    lives = (*(Life(ready=0.5, reply=0.05, exits=end) for end in ends), Life(ready=0.5, reply=0.05))

    async def body(world: ClusterWorld) -> None:
        async def trouble() -> None:
            number = 0
            while True:
                await anyio.sleep(draw.uniform(0, 6))
                cluster = world.cluster
                match draw.choice(["lose", "lose", "roll", "load"]):
                    case "lose" if cluster.nodes:
                        cluster.lose(draw.choice(sorted(cluster.nodes)))
                        number += 1
                        cluster.add(f"more-{number}", draw.randint(1, 3))
                    case "roll":
                        with anyio.move_on_after(draw.uniform(0, 10)):
                            await world.fleet.rolling_restart()
                    case "load":
                        await world.fleet.load()

        async with anyio.create_task_group() as group:
            group.start_soon(trouble)
            await world.ask_many(150, 6, gap=0.3)
            group.cancel_scope.cancel()

    world = in_world(
        body, {"a": 2, "b": 2}, replicas, backend=backend, seed=seed, lives=lives, max_attempts=50, attempt_window=1.0
    )
    assert len(world.answers) == 150


@both
def test_what_was_in_flight_on_a_lost_node_goes_to_the_others(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await world.fleet.dispatch.until(lambda: len(world.fleet.dispatch.open) == 2)
        async with anyio.create_task_group() as group:
            group.start_soon(world.ask_many, 4, 4)
            await anyio.sleep(5.0)
            world.cluster.lose("a")

    world = in_world(body, {"a": 1, "b": 1}, 2, backend=backend, lives=(Life(ready=0.5, reply=10.0),))
    assert len(world.answers) == 4
    assert world.fleet.client.retries + world.fleet.client.resent >= 2, "each of the two was sent again"


@both
def test_a_replica_whose_node_is_lost_is_placed_elsewhere_as_soon_as_there_is_room(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await world.fleet.healthy()
        world.cluster.lose("a")
        await anyio.sleep(20.0)
        assert world.fleet.state == "Starting"
        assert "no place is free" in world.fleet.waiting_for
        world.cluster.add("b", 1)
        await world.fleet.healthy()
        assert [place.node for place in world.cluster.places] == ["b"]

    in_world(body, {"a": 1}, 1, backend=backend)


@both
def test_a_fleet_goes_on_with_the_replicas_that_have_a_place(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await anyio.sleep(10.0)
        await world.ask_many(10, 2)
        assert len(world.fleet.urls) == 2

    world = in_world(body, {"a": 2}, 3, backend=backend, timeout=5.0)
    (refused,) = [record for record in world.records if record.event == "NotPlaced"]
    assert refused.detail["diagnosis"]["cause"] == "no-resources"


@both
def test_a_fleet_without_any_place_is_given_up_with_what_is_missing(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        with pytest.raises(StartFailed, match="no place is free"):
            await world.fleet.healthy()

    in_world(body, {}, 2, backend=backend, timeout=5.0)


@both
def test_a_draining_replica_gets_nothing_and_finishes_what_it_has(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await world.fleet.dispatch.until(lambda: len(world.fleet.dispatch.open) == 2)
        first = world.fleet.slots[0].replica
        async with anyio.create_task_group() as group:
            group.start_soon(world.ask_many, 2, 2)
            await anyio.sleep(1.0)
            await first.stop()
            assert first.gate.in_flight == 1
            assert not first.gate.is_open
            await world.ask_many(3, 3)
            assert first.gate.peak == 1

    world = in_world(body, {"a": 2}, 2, backend=backend, lives=(Life(ready=0.5, reply=3.0),))
    assert len(world.answers) == 5
    assert world.fleet.client.retries == 0


@both
def test_no_request_spends_its_attempts_on_a_node_that_is_not_yet_known_to_be_dead(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        world.cluster.notice = 25.0
        await world.fleet.dispatch.until(lambda: len(world.fleet.dispatch.open) == 2)
        async with anyio.create_task_group() as group:
            group.start_soon(world.ask_many, 200, 8, 0.1)
            await anyio.sleep(2.0)
            world.cluster.lose("a")
            world.cluster.lose("b")
            await anyio.sleep(1.0)
            assert {slot.replica.state for slot in world.fleet.slots} == {"Unreachable"}
            world.cluster.add("c", 2)

    world = in_world(body, {"a": 1, "b": 1}, 2, backend=backend, max_retries=3)
    assert len(world.answers) == 200


@both
def test_a_server_that_cannot_be_reached_gets_nothing_until_it_can(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await world.fleet.healthy()
        (place,) = world.cluster.places
        replica = world.fleet.slots[0].replica
        place.cut_off = True
        replica.gate.doubt()
        await anyio.sleep(5.0)
        assert not replica.gate.is_open
        place.cut_off = False
        await anyio.sleep(1.0)
        assert replica.gate.is_open
        await world.ask_many(3, 1)

    world = in_world(body, {"a": 1}, 1, backend=backend)
    assert not [record for record in world.records if record.event == "Lost"]


@both
def test_a_server_that_nobody_can_reach_for_long_is_placed_anew(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await world.fleet.healthy()
        (place,) = world.cluster.places
        place.cut_off = True
        world.fleet.slots[0].replica.gate.doubt()
        await anyio.sleep(90.0)
        assert world.cluster.places != [place]
        await world.ask_many(3, 1)

    in_world(body, {"a": 1}, 1, backend=backend)


FAILS = Life(ready=None, exits=1.0, code=1)


@both
def test_a_server_that_has_spent_its_attempts_on_one_node_is_tried_on_another(backend: str) -> None:
    async def body(world: ClusterWorld) -> None:
        await world.fleet.healthy()
        assert [place.node for place in world.cluster.places] == ["b"]
        await world.ask_many(3, 1)

    lives = (FAILS, FAILS, Life(ready=0.5, reply=0.05))  # two starts that fail alike are all of a server's attempts
    world = in_world(body, {"a": 1, "b": 1}, 1, backend=backend, lives=lives)
    assert [record.detail["node"] for record in world.records if record.event == "Placed"] == ["a", "b"]


@both
@pytest.mark.parametrize(("nodes", "starts"), [({"a": 3}, 2), ({"a": 1, "b": 1, "c": 1}, 4)])
def test_a_server_that_fails_wherever_it_can_be_is_given_up_with_what_it_failed_of(
    backend: str, nodes: dict[str, int], starts: int
) -> None:
    async def body(world: ClusterWorld) -> None:
        with pytest.raises(StartFailed, match="exited with code 1") as caught:
            await world.fleet.healthy()
        assert ("no other node:" in str(caught.value)) == (len(nodes) == 1)
        assert world.fleet.starts == starts

    in_world(body, nodes, 1, backend=backend, lives=(FAILS,))


def test_every_row_of_the_table_can_be_taken_and_every_path_ends() -> None:
    assert PLACEMENT.lint() == []

    def possible(state: str, facts: PlacementFacts, event: Event) -> bool:
        return not isinstance(event, Lost | ServerEnded) or (facts.placed_at is not None and not facts.over)

    found = paths(replace(placement_model(), possible=possible))
    assert found.never == ()
    assert all(path.edges[-1].row.target in PLACEMENT.final for path in found.all)
