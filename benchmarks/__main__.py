"""`python -m benchmarks [NAME ...]`: measure, print a table, exit 1 if a bound is missed."""

from __future__ import annotations

import sys
import time

from benchmarks import (
    driver,
    engine,
    explorer,
    fleet,
    generate,
    group,
    keeper,
    kills,
    life,
    many,
    nodes,
    requests,
    utilisation,
    waiters,
)
from benchmarks.figures import Figure, table

MEASUREMENTS = {
    "life": life.measure,
    "kills": kills.measure,
    "keeper": keeper.measure,
    "driver": driver.measure,
    "explorer": explorer.measure,
    "many": many.measure,
    "waiters": waiters.measure,
    "requests": requests.measure,
    "fleet": fleet.measure,
    "group": group.measure,
    "nodes": nodes.measure,
    "generate": generate.measure,
    "engine": engine.measure,
    "utilisation": utilisation.measure,
}


def main() -> int:
    chosen = sys.argv[1:] or list(MEASUREMENTS)
    unknown = set(chosen) - set(MEASUREMENTS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in chosen:
        began = time.monotonic()
        print(f"measuring {name} …", end=" ", file=sys.stderr, flush=True)
        figures += MEASUREMENTS[name]()
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print(table(figures))
    missed = [figure for figure in figures if not figure.holds]
    return 1 if missed else 0


sys.exit(main())
