"""The rules of the simulation can be broken: a world that does wrong is found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from lifecycle.attempt import Attempt
from lifecycle.chart import Chart
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Facts, Fault
from lifecycle.testing import Life, Turn, run_virtual
from tests.simulation.world import World


async def one_life() -> World:
    world = World(Life(ready=0.5, term=1.0, kill=1.0))
    async with world.server as server:
        await server.healthy()
        await anyio.sleep(2.0)
    return world


async def checked_life() -> None:
    (await one_life()).check_end()


async def given_up_life() -> None:
    """A bug, and another one in the end of its process: it is given up, and a cleanup has to end the process."""
    world = World(Life(ready=0.5, term=None, kill=1.0))
    async with world.server as server:
        await server.healthy()
        world.host.plan("end", Turn(0.0, RuntimeError("another bug")))
        server.driver.post(Fault("an activity", "a bug"))
        await server.ended()
    world.check_end()
    assert server.state == "Failed"


def outside_in() -> Chart[Facts]:
    """The ports end before the process, the lock before both."""
    return replace(SERVER, spans=tuple(reversed(SERVER.spans)))


def without_ports_in_draining() -> Chart[Facts]:
    spans = [replace(s, lasts=("Starting", "Healthy")) if s.activity == "hold_ports" else s for s in SERVER.spans]
    return replace(SERVER, spans=tuple(spans))


@pytest.mark.parametrize("life", [checked_life, given_up_life])
def test_a_sound_world_breaks_no_rule(life: Callable[[], Awaitable[None]]) -> None:
    run_virtual(life)


@pytest.mark.parametrize(
    ("wrong", "life"), [(outside_in, given_up_life), (without_ports_in_draining, checked_life)]
)
def test_a_process_that_outlives_its_port_is_found(
    wrong: Callable[[], Chart[Facts]], life: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifecycle.server.SERVER", wrong())
    with pytest.raises(AssertionError, match="port 30001 was released while process 100 lives"):
        run_virtual(life)


def test_an_end_that_does_not_wait_for_the_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(self: Attempt, grace: float) -> None:
        self.process = None

    monkeypatch.setattr(Attempt, "end", careless)
    with pytest.raises(AssertionError, match="was released while process 100 lives"):
        run_virtual(checked_life)


def test_ports_that_are_not_given_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.testing.host.SimulatedPorts.release", lambda self: None)
    with pytest.raises(AssertionError, match="held"):
        run_virtual(checked_life)


def test_a_request_to_a_server_that_is_not_ready_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        world = World(Life(ready=5.0, listens=0.0))
        monkeypatch.setattr("lifecycle.gate.Gate.is_open", property(lambda gate: gate._state == "Starting"))
        async with world.server as server:
            await server.chat({"messages": []})
        world.check_end()

    with pytest.raises(AssertionError, match="a request is sent in Starting"):
        run_virtual(body)


def test_an_edited_journal_is_found() -> None:
    async def body() -> None:
        world = await one_life()
        records: Any = world.server.journal.records
        records.remove(next(record for record in records if record.event == "Launched"))
        world.check_end()

    with pytest.raises(Exception, match="the chart says"):
        run_virtual(body)
