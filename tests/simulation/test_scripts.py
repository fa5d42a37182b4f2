"""Any life of a server, with any faults, events at any moment and tasks in any order, keeps the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from lifecycle.chart import Event
from lifecycle.driver import Disposition
from lifecycle.errors import LaunchError, PortTaken, StokerError
from lifecycle.host import NoAnswer
from lifecycle.journal import Kind
from lifecycle.server_facts import Kill, Shutdown, Sleep, Start, Stop, Wake
from lifecycle.testing import Life, Turn, run_virtual
from tests.effort import TIMES
from tests.simulation.world import World

LONGEST = 20.0
"""Seconds of a script; then the server is stopped if it has not ended by then."""
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
    plans: list[tuple[str, float, Callable[[], BaseException] | None]]
    events: list[tuple[float, Event]]
    requests: list[float]
    cancelled: float | None
    seed: int


def times(longest: float = LONGEST) -> st.SearchStrategy[float]:
    return st.integers(0, int(longest * 4)).map(lambda quarter: quarter / 4)


WORDS = ("phase load", "phase load 1/2", "error: unrecognized arguments: --x", "Address already in use", "hello")
lives = st.builds(
    Life,
    listens=st.none() | times(2),
    ready=st.none() | times(4),
    exits=st.none() | times(10),
    code=st.sampled_from([0, 1, 2, 127]),
    says=st.lists(st.tuples(times(6), st.sampled_from(WORDS)), max_size=3).map(tuple),
    term=st.none() | times(8),
    kill=times(1),
    orphans=st.booleans(),
    deaf=st.none() | times(10),
    wedged=st.none() | times(10),
    status=st.sampled_from([200, 200, 200, 401, 500]),
    model=st.sampled_from(["", "", "", "another"]),
    stolen=st.sampled_from([False, False, False, True]),
    reply=times(8),
)
good_lives = st.builds(Life, ready=times(2), exits=st.none() | times(10), reply=times(4), term=st.none() | times(8))


def bug() -> BaseException:
    return RuntimeError("a bug")


FAILURES: dict[str, list[Callable[[], BaseException] | None]] = {
    "compile_lock": [None, bug, lambda: StokerError("no locks here"), lambda: OSError(38, "no locks")],
    "hold_ports": [None, bug, lambda: PortTaken(80, "somebody"), lambda: OSError(99, "no such address")],
    "spawn": [None, bug, lambda: LaunchError("no such program")],
    "listening": [None, bug],
    "probe": [None, bug, lambda: NoAnswer("reset")],
    "exited": [None, bug],
}
plans = st.sampled_from(sorted(FAILURES)).flatmap(
    lambda operation: st.tuples(st.just(operation), times(3), st.sampled_from(FAILURES[operation]))
)
end_plans = st.tuples(st.just("end"), times(1), st.sampled_from([None, bug]))
scripts = st.builds(
    Script,
    lives=st.lists(lives | good_lives, min_size=1, max_size=4),
    local=st.sampled_from([True, True, True, False]),
    compiles=st.sampled_from(["", "cache"]),
    # One bug in `end` at most: it is called again. If it never works, nobody can end the process.
    plans=st.builds(list.__add__, st.lists(plans, max_size=4), st.lists(end_plans, max_size=1)),
    events=st.lists(
        st.tuples(times(), st.sampled_from([Stop(), Kill(), Shutdown(), Start(), Sleep(), Wake()])), max_size=3
    ),
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
    for operation, delay, failure in script.plans:
        world.host.plan(operation, Turn(delay, failure() if failure else None))
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
SLOW_END = replace(PLAIN, plans=[("spawn", 0.25, None), ("end", 0.25, bug)], events=[(0.25, Stop()), (0.25, Stop())])
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
