"""What it costs to wait for a compile cache that another process builds, and how soon the waiters go on."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from benchmarks.figures import Figure
from lifecycle.adapter import CompileCache
from lifecycle.resources.compile_lock import acquire

WAITERS = 8
ROUNDS = 5
WAIT = 5.0
"""Seconds for which the waiters wait in one round."""
KEY = "bench"
WAITER = """
import json, sys, time
from pathlib import Path
import anyio
from lifecycle.adapter import CompileCache
from lifecycle.resources.compile_lock import acquire

async def wait():
    began = []
    def waiting(holder):
        began.append((time.process_time(), time.monotonic()))
        print("waiting", flush=True)
    await acquire(CompileCache(sys.argv[1], Path(sys.argv[2])), Path(sys.argv[2]), waiting=waiting)
    now, used = time.monotonic(), time.process_time()
    print(json.dumps({"through": now, "share": (used - began[0][0]) / (now - began[0][1])}), flush=True)

anyio.run(wait)
"""


def measure() -> list[Figure]:
    through: list[float] = []
    shares: list[float] = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            last, used = anyio.run(_round, CompileCache(f"{KEY}-{number}", Path(folder)))
        through.append(last)
        shares += used
    return [
        Figure(f"from the mark to the last of {WAITERS} waiters, median of {ROUNDS}", 1000 * median(through), "ms"),
        Figure("from the mark to the last of them, worst", 1000 * max(through), "ms", 1000),
        Figure("CPU of a waiter, share of a core, worst", 100 * max(shares), "%", 1),
    ]


async def _round(cache: CompileCache) -> tuple[float, list[float]]:
    """Seconds from the mark to the last waiter that is through, and the share of a core that each one used."""
    assert cache.root is not None
    held = await acquire(cache, cache.root)
    assert held is not None
    argv = (sys.executable, "-c", WAITER, cache.key, str(cache.root))
    waiters = [_start(argv) for _ in range(WAITERS)]
    for waiter in waiters:
        assert _line(waiter) == "waiting\n"
    await anyio.sleep(WAIT)
    held.complete()
    marked = time.monotonic()
    ends: list[dict[str, Any]] = [json.loads(_line(waiter)) for waiter in waiters]
    for waiter in waiters:
        waiter.communicate()
    held.release()
    return max(end["through"] for end in ends) - marked, [end["share"] for end in ends]


def _start(argv: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
