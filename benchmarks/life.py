"""How soon Stoker notices what a server does, and how soon it is rid of it; beside datatrove's `CustomServer`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from benchmarks.fakes import SCRIPT, config, not_ready_for, stats
from benchmarks.figures import Figure, median_and_worst, spread
from lifecycle.journal import Kind, Record
from lifecycle.server import Server
from tests.processes.trees import is_alive

STARTS = 30
PEER = Path(sys.prefix) / "peer" / "bin" / "python"
TREE = ("same", "session", "double")
"""Children of the fake server: one in its group, one in a session of its own, one that has forked away."""
GRACE = 2.0


class Clock:
    """When which event came, on the system's monotonic clock."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def __call__(self, record: Record) -> None:
        if record.kind is Kind.TRANSITION:
            self.at[str(record.event)] = time.monotonic()


def measure() -> list[Figure]:
    roll = random.Random(7)
    waits = [roll.uniform(0.2, 2.0) for _ in range(STARTS)]
    with tempfile.TemporaryDirectory() as folder:
        ready, gone = anyio.run(_starts, Path(folder), waits)
        obeys, ignores = anyio.run(_teardowns, Path(folder))
    left = sum(count for _, count in (*obeys, *ignores))
    soon, late = (max(took for took, _ in found) for found in (obeys, ignores))
    peer = _peer(waits[:10])
    return [
        *median_and_worst("real readiness to Healthy", ready, 50, 150, spread(peer["ready"])),
        *median_and_worst("process exit to the event", gone, 50, None, spread(peer["exit"])),
        Figure("teardown of a tree that obeys SIGTERM", soon, "s", 0.5, peer=spread(peer["teardown"])),
        Figure(f"teardown of one that ignores it, grace {GRACE:g} s", late, "s", GRACE + 0.5),
        Figure("processes left behind by these", left, "", 0, peer=f"{peer['left']:.3g} in each run"),
    ]


async def _starts(folder: Path, waits: list[float]) -> tuple[list[float], list[float]]:
    ready, gone = [], []
    for wait in waits:
        clock = Clock()
        server = Server(config(folder, routes=not_ready_for(wait)), listener=clock)
        async with server:
            url = await server.healthy()
            bound_at = (await anyio.to_thread.run_sync(stats, url))["bound_at"]
            ready.append(clock.at["BecameReady"] - (bound_at + wait))
            assert server.driver.facts.pid is not None
            killed_at = time.monotonic()
            os.kill(server.driver.facts.pid, signal.SIGKILL)
            await server.driver.wait("Backoff")
            gone.append(clock.at["Exited"] - killed_at)
    return ready, gone


async def _teardowns(folder: Path) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Seconds from the stop to Stopped, and how many processes are left then; of trees that obey, and of others."""
    obeys = [await _teardown(folder, child=list(TREE)) for _ in range(10)]
    stubborn = {"child": [f"{kind},ignore-term" for kind in TREE], "on_term": "ignore"}
    return obeys, [await _teardown(folder, **stubborn) for _ in range(3)]


async def _teardown(folder: Path, **flags: Any) -> tuple[float, int]:
    found = config(folder, **flags)
    limited = {"drain_timeout": GRACE, "terminate_timeout": GRACE}
    server = Server(type(found)(**{**vars(found), **limited}))
    async with server:
        counted = await anyio.to_thread.run_sync(stats, await server.healthy())
        began = time.monotonic()
    took = time.monotonic() - began
    return took, sum(is_alive(pid) for pid in (counted["pid"], *counted["children"]))


def _peer(waits: list[float]) -> Mapping[str, Any]:
    """The same with datatrove, in its own environment."""
    if not PEER.exists():
        raise SystemExit(f"{PEER} is missing: `make bench` installs datatrove there")
    script = Path(__file__).with_name("peer.py")
    done = subprocess.run(
        [str(PEER), str(script), str(SCRIPT), json.dumps(waits)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        check=True, timeout=300,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
