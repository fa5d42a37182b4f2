"""Lives of single servers, each from a seed of its own, with the faults of `draw`: as many as a second has room for."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import anyio

from lifecycle.chart import Event
from lifecycle.errors import LaunchError, PortTaken, StokerError
from lifecycle.host import NoAnswer
from lifecycle.server_facts import Kill, Shutdown, Sleep, Start, Stop, Wake
from lifecycle.testing import Life, Turn, run_virtual
from tests.simulation.whole.draw import ODDS, life
from tests.simulation.world import World

LONGEST = 6.0
"""Virtual seconds after which a server is stopped that has not ended."""
SHORT: dict[str, Any] = {
    "startup_timeout": 0.4, "no_progress_timeout": 0.3, "backoff_initial": 0.5, "drain_timeout": 2.0,
    "terminate_timeout": 2.0,
}  # fmt: skip
"""Short times: a start that lasts long is hundreds of probes which all find the same."""
PACE = 0.04
"""Times of starts, of those of `draw`."""
LONGEST_END = 40.0
"""Virtual seconds from a stop to the end, at most."""
AT_ONCE = 20
"""Lives in one event loop, one after the other."""
EVENTS: tuple[Event, ...] = (Stop(), Kill(), Shutdown(), Start(), Sleep(), Wake())
FAILURES = {
    "compile_lock": (RuntimeError("a bug"), StokerError("no locks here"), OSError(38, "no locks")),
    "hold_ports": (RuntimeError("a bug"), PortTaken(80, "somebody"), OSError(99, "no such address")),
    "spawn": (RuntimeError("a bug"), LaunchError("no such program")),
    "probe": (RuntimeError("a bug"), NoAnswer("reset")),
    "exited": (RuntimeError("a bug"),),
}


@dataclass
class Lived:
    """What became of so many servers."""

    ends: Counter[str] = field(default_factory=Counter)
    records: int = 0
    starts: int = 0
    virtual: float = 0.0
    broken: dict[int, str] = field(default_factory=dict)
    """What was broken, by seed."""


def lives_of(random: Random) -> list[Life]:
    rates = {kind: random.uniform(*ODDS[kind]) for kind in ODDS if random.random() < 0.4}
    several = [life(random, rates, random.choice((0.0, 0.5, 3.0))) for _ in range(random.randint(1, 4))]
    return [
        replace(each, ready=None if each.ready is None else PACE * each.ready, listens=PACE * (each.listens or 0.0))
        for each in several
    ]


async def live(seed: int, lived: Lived) -> None:
    """One server's life, and its callers'."""
    random = Random(seed)
    local = random.random() < 0.85
    first, *others = lives_of(random)
    world = World(
        first, *others, endpoint=None if local else replace(first, exits=None, stolen=False),
        compiles=random.choice(("", "cache")), roll=random.random(), model="simulated", max_retries=10, **SHORT,
    )  # fmt: skip
    for _ in range(random.choice((0, 0, 0, 1, 2, 3))):
        operation = random.choice(tuple(FAILURES))
        error = random.choice((None, *FAILURES[operation]))
        world.host.plan(operation, Turn(random.uniform(0, 2), error))
    server = world.server
    asked: list[float] = []

    async def send(at: float, event: Event) -> None:
        await anyio.sleep(at)
        if isinstance(event, Stop | Kill | Shutdown):
            asked.append(anyio.current_time())
        await server.driver.send(event)

    async def ask(at: float) -> None:
        await anyio.sleep(at)
        try:
            await server.chat({"messages": []})
        except StokerError:
            return

    began = anyio.current_time()
    async with anyio.create_task_group() as around:
        for _ in range(random.choice((0, 0, 1, 2))):
            around.start_soon(send, random.uniform(0, LONGEST), random.choice(EVENTS))
        for _ in range(random.choice((0, 1, 2, 4))):
            around.start_soon(ask, random.uniform(0, LONGEST))
        async with server:
            with anyio.move_on_after(random.uniform(1.0, LONGEST)):
                await server.ended()
            asked.append(anyio.current_time())
        if anyio.current_time() - min(asked) > LONGEST_END:
            world.errors.append(f"it ended {anyio.current_time() - min(asked):.0f} s after it was asked to")
        world.check_end()
        around.cancel_scope.cancel()
    lived.ends[server.state] += 1
    lived.records += server.journal.seq
    lived.starts += server.starts
    lived.virtual += anyio.current_time() - began


async def several(seeds: range, lived: Lived) -> None:
    for seed in seeds:
        try:
            await live(seed, lived)
        except Exception as error:
            lived.broken[seed] = repr(error)


def run_lives(seeds: range, lived: Lived | None = None) -> Lived:
    """These lives, each with its rules checked after every record."""
    lived = lived or Lived()
    for first in range(seeds.start, seeds.stop, AT_ONCE):
        run_virtual(several, range(first, min(first + AT_ONCE, seeds.stop)), lived, seed=first, limit=1e6)
    return lived



def show(seed: int) -> int:
    """Live one seed again, as it was among its neighbours."""
    first = seed - seed % AT_ONCE
    lived = run_lives(range(first, seed + 1))
    print(lived.broken.get(seed, f"seed {seed}: no rule was broken"))
    return int(seed in lived.broken)


def soak(seconds: float, first: int) -> int:
    """New lives until the time is over or a rule is broken."""
    lived, at = Lived(), first - first % AT_ONCE
    began = time.process_time()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not lived.broken:
        run_lives(range(at, at + AT_ONCE), lived)
        at += AT_ONCE
    spent = time.process_time() - began
    for seed, what in lived.broken.items():
        print(f"{what}\nagain: python -m tests.simulation.whole --lives --seed {seed}", file=sys.stderr)
    count = lived.ends.total()
    print(
        f"{count} lives, {lived.starts} starts, {lived.virtual / 3600:.1f} virtual hours, {lived.records} journal "
        f"records: {count / spent:.0f} lives a second of CPU; {dict(lived.ends)}"
    )
    return int(bool(lived.broken))
