"""Replays a seed of the whole-system simulation, or tries new seeds for some time.

    python -m tests.simulation.whole --seed 7            # what happens in it, its journal and its diagram
    python -m tests.simulation.whole --seconds 600       # new seeds, on one core; stops at the first that fails
    python -m tests.simulation.whole --lives --seconds 60

`make simulate SEED=...`, `make simulate SECONDS=...` do the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from lifecycle.diagram import counts, server_view, svg
from tests.simulation.whole import lives
from tests.simulation.whole.world import Ran, run

FIRST = int(time.time()) % 10**6 * 1000
"""Of the seeds that nobody has chosen: others than the last time."""


def main(words: list[str] | None = None) -> int:
    """Exit code: 0 if no rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.whole")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--seconds", type=float, default=60.0, help="of new seeds, unless --seed is given (60)")
    parser.add_argument("--first", type=int, default=FIRST, help="of the new seeds (by the clock)")
    parser.add_argument("--lives", action="store_true", help="single servers' lives instead of the whole system")
    parser.add_argument("--output", type=Path, default=Path("."), help="folder for journal and diagram of a replay")
    args = parser.parse_args(words)
    if args.lives:
        return lives.soak(args.seconds, args.first) if args.seed is None else lives.show(args.seed)
    return soak(args.seconds, args.first, args.backend) if args.seed is None else replayed(args)


def replayed(args: argparse.Namespace) -> int:
    """One seed: what it means, what happened, and where it can be seen."""
    ran = run(args.seed, args.backend)
    args.output.mkdir(parents=True, exist_ok=True)
    journal, picture = (args.output / f"simulated-{args.seed}.{ending}" for ending in ("jsonl", "svg"))
    journal.write_bytes(ran.journal)
    picture.write_text(svg(server_view(None, f"Seed {args.seed}"), counts(ran.records)), encoding="utf-8")
    print(ran.draw)
    print(f"{ran.runs} runs of the job, {len(ran.records)} journal records, {ran.seconds:.0f} virtual seconds")
    print(told(ran.faults))
    print(f"journal: {journal}, {ran.digest}\ndiagram: {picture}")
    return report(ran, args.backend)


def soak(seconds: float, first: int, backend: str) -> int:
    """New seeds until the time is over or one fails."""
    faults: Counter[str] = Counter()
    virtual, records, lines, runs = 0.0, 0, 0, 0
    began, seed = time.monotonic(), first
    while time.monotonic() - began < seconds:
        ran = run(seed, backend)
        if ran.errors:
            return report(ran, backend)
        faults += ran.faults
        virtual, records, lines, runs = (
            virtual + ran.seconds, records + len(ran.records), lines + ran.lines, runs + ran.runs
        )  # fmt: skip
        seed += 1
    print(
        f"{seed - first} seeds from {first} on, {virtual / 3600:.1f} virtual hours, {runs} runs of jobs, "
        f"{lines} records of output, {records} journal records: no rule was broken\n{told(faults)}"
    )
    return 0


def told(faults: Counter[str]) -> str:
    return "; ".join(f"{kind}: {count}" for kind, count in faults.most_common()) or "no faults that come with time"


def report(ran: Ran, backend: str) -> int:
    """What was broken, and the command that shows it again."""
    if not ran.errors:
        return 0
    print(f"{ran.draw}\nbroken:", file=sys.stderr)
    for error in list(dict.fromkeys(ran.errors))[:10]:
        print(f"  {error}", file=sys.stderr)
    print(f"again, with journal and diagram: {again(ran.draw.seed, backend)}", file=sys.stderr)
    return 1


def again(seed: int, backend: str = "asyncio") -> str:
    """The command that replays a seed."""
    return f"python -m tests.simulation.whole --seed {seed}" + (f" --backend {backend}" if backend != "asyncio" else "")


if __name__ == "__main__":
    sys.exit(main())
