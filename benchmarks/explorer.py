"""Every interleaving of three letters in the mailbox of the server's chart."""

from __future__ import annotations

import time

from benchmarks.figures import Figure
from lifecycle.explore import explore
from lifecycle.testing.invariants import INVARIANTS, MOVES
from lifecycle.testing.server_model import server_model


def measure() -> list[Figure]:
    began = time.perf_counter()
    found = explore(server_model(), depth=3, invariants=INVARIANTS, moves=MOVES)
    took = time.perf_counter() - began
    assert found.counterexample is None
    return [
        Figure("explorer, mailbox of three, all invariants", took, "s", 5),
        Figure("configurations that it covers", found.configurations, ""),
    ]
