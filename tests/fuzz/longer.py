"""`python -m tests.fuzz.longer --seconds N`: the fuzzing of `make test`, many times over, with new cases each time.

Each round tries five times as many cases as `make test`, from a seed of its own, until the time is over or a property
is broken; then Hypothesis has printed the smallest case, which belongs into the test as an `@example`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

TIMES = "5"


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers of logs, journals, outputs, inputs and streams.")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    until, rounds = time.monotonic() + args.seconds, 0
    while True:
        seed = random.SystemRandom().randrange(1 << 32)
        left = max(1.0, until - time.monotonic())
        command = [sys.executable, "-m", "pytest", "-q", "-x", f"--hypothesis-seed={seed}", str(Path(__file__).parent)]
        try:
            done = subprocess.run(command, env={**os.environ, "STOKER_TEST_TIMES": TIMES}, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            break
        rounds += 1
        if done.returncode:
            print(f"a property is broken: round {rounds}, seed {seed}", file=sys.stderr)
            return 1
    print(f"{rounds} whole rounds and a part of one in {args.seconds:g} s: no property was broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
