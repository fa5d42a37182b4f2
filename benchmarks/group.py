"""A group of two hosts, each a `stoker serve` of its own: from the loss of either member to nothing left on both."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from lifecycle.ending import BEFORE_READY_GRACE
from tests.group.commands import Hosts
from tests.processes.trees import wait_for_end

LOSSES = 5
"""Of each member, in one life of the commands."""
BOUND = 2.0
"""Seconds, beyond the grace between SIGTERM and SIGKILL."""


def measure() -> list[Figure]:
    obeys, obeys_left = _losses(LOSSES)
    ignores, ignores_left = _losses(1, on_term="ignore")
    return [
        Figure(f"group of 2, {len(obeys)} losses of a member: noticed, all gone on both hosts, worst", max(obeys), "s",
               BOUND),
        Figure(f"the same, what is left ignores SIGTERM, grace {BEFORE_READY_GRACE:g} s", max(ignores), "s",
               BOUND + BEFORE_READY_GRACE),
        Figure("processes left behind by these", obeys_left + ignores_left, "", 0),
    ]  # fmt: skip


def _losses(rounds: int, **flags: Any) -> tuple[list[float], int]:
    """Seconds from SIGKILL of a member's main process to the end of both, and how many processes are left at last."""
    took = []
    with tempfile.TemporaryDirectory(prefix="stoker-group-") as folder:
        hosts = Hosts(Path(folder))
        try:
            head, worker = hosts.pair("max_attempts=1000", "attempt_window=0.001", **flags)
            seen = head.entered("Healthy")
            for number in range(2 * rounds):
                pids = [head.pid("g-rank-0"), worker.pid("g-rank-1")]
                began = time.monotonic()
                os.kill(pids[number % 2], signal.SIGKILL)
                if wait_for_end(pids):
                    raise SystemExit(f"a member lives on: {pids}")
                head.entered("Gathering", after=seen)
                took.append(time.monotonic() - began)
                seen = head.entered("Healthy", after=seen)
            head.signal(signal.SIGTERM)
            head.code()
            worker.code()
            return took, len(hosts.left())
        finally:
            hosts.end()
