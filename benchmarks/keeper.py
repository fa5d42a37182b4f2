"""What a keeper costs: memory, and the time that it adds to a start."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import anyio
import psutil

from benchmarks.figures import Figure
from lifecycle.adapter import Command
from lifecycle.host import Spawn
from lifecycle.resources.process import spawn

STARTS = 30
SLEEP = Command((sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"))


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        starts, resident = anyio.run(_starts, Path(folder))
    return [
        Figure(f"keeper, to start a process, median of {STARTS}", 1000 * median(starts), "ms", 40),
        Figure("keeper, resident", max(resident) / 2**20, "MiB", 12),
    ]


async def _starts(folder: Path) -> tuple[list[float], list[int]]:
    """Seconds from the call to the word that the process lives, and resident bytes of the keeper then."""
    starts, resident = [], []
    for number in range(STARTS):
        began = time.monotonic()
        process = await spawn(Spawn(SLEEP, folder / f"{number}.log", 2**20, "bench", folder))
        starts.append(time.monotonic() - began)
        keeper = psutil.Process(process.pid).parent()
        assert keeper is not None
        resident.append(keeper.memory_info().rss)
        await process.end(0)
    return starts, resident
