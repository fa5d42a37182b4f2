"""Any life of a server, with any faults, events at any moment and tasks in any order, keeps the rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from lifecycle.chart import Event
from lifecycle.driver import Disposition
from lifecycle.errors import StokerError
from lifecycle.journal import Kind
from lifecycle.server_facts import Stop
from lifecycle.testing import Life, run_virtual
from lifecycle.testing.strategies import (
    LONGEST,
    Trouble,
    bug,
    event_scripts,
    good_lives,
    lives,
    plan,
    times,
    troubles,
)
from tests.effort import TIMES
from tests.simulation.world import World

LONGEST_END = 30.0
"""Seconds from a stop to the end, at most: the kill limit, what the last kill takes, and the planned delays."""


PHASES = [phase for phase in Phase if phase is not Phase.explain]
"""To explain a failure, Hypothesis would trace the event loop: minutes."""


@dataclass(frozen=True)
class Script:
    """One run, as data."""

    lives: list[Life]
    local: bool
    compiles: str
    plans: list[Trouble]
    events: list[tuple[float, Event]]
    requests: list[float]
    cancelled: float | None
    seed: int


scripts = st.builds(
    Script,
    lives=st.lists(lives() | good_lives(), min_size=1, max_size=4),
    local=st.sampled_from([True, True, True, False]),
    compiles=st.sampled_from(["", "cache"]),
    plans=troubles(),
    events=event_scripts(),
    requests=st.lists(times(), max_size=4),
    cancelled=st.none() | st.none() | times(),
    seed=st.integers(0, 2**16),
)  # fmt: skip


@dataclass
class Seen:
    """What became of everything that was asked."""

    dispositions: list[Disposition] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    errors: list[StokerError] = field(default_factory=list)


async def play(script: Script) -> Seen:
    world = World(
        *script.lives,
        endpoint=None if script.local else script.lives[0],
        compiles=script.compiles,
        roll=0.5,
        model="simulated",
        max_retries=10,
    )
    plan(world.host, script.plans)
    server, seen = world.server, Seen()

    async def send(at: float, event: Event) -> None:
        await anyio.sleep(at)
        seen.dispositions.append(await server.driver.send(event))

    async def ask(at: float) -> None:
        await anyio.sleep(at)
        try:
            seen.answers.append(await server.chat({"messages": []}))
        except StokerError as error:
            seen.errors.append(error)

    async with anyio.create_task_group() as others:
        for at, event in script.events:
            others.start_soon(send, at, event)
        for at in script.requests:
            others.start_soon(ask, at)
        with anyio.CancelScope() as outside:
            if script.cancelled is not None:
                outside.deadline = anyio.current_time() + script.cancelled
            async with server:
                with anyio.move_on_after(LONGEST):
                    await server.ended()
    world.check_end()
    check_stop(world)
    return seen


def check_stop(world: World) -> None:
    """Once it was asked to end, it ends in time."""
    steps = [record for record in world.records if record.kind in (Kind.TRANSITION, Kind.INTERNAL)]
    asked = [record.time for record in steps if record.event in ("Stop", "Kill", "Shutdown")]
    if asked:
        assert steps[-1].time - asked[0] <= LONGEST_END


PLAIN = Script([Life(ready=1.5)], True, "", [], [], [], None, 0)
SLOW = [Trouble("spawn", 0.25, None), Trouble("end", 0.25, bug)]
SLOW_END = replace(PLAIN, plans=SLOW, events=[(0.25, Stop()), (0.25, Stop())])
"""Its cleanup leaves a record, later than the event that caused it."""
WATCHED = replace(PLAIN, lives=[Life(ready=1.5, reply=3.0)], requests=[1.0])
"""The watch for a stall has to wait for the smallest time that there is."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@example(script=SLOW_END)
@example(script=WATCHED)
@settings(max_examples=100 * TIMES, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts)
def test_any_script_keeps_the_rules_and_leaves_nothing_behind(backend: str, script: Script) -> None:
    seen = run_virtual(play, script, backend=backend, seed=script.seed, limit=1e5)
    assert len(seen.dispositions) == len(script.events)  # every send is answered
    assert len(seen.answers) + len(seen.errors) == len(script.requests)  # and so is every request
