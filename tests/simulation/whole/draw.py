"""What one seed means: which faults happen in a run of the whole system, how often, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal

from lifecycle.testing import Life

Shape = Literal["server", "fleet", "groups"]
ODDS: dict[str, tuple[float, float]] = {
    "crash": (0.05, 0.8), "hopeless": (0.01, 0.1), "hang": (0.05, 0.5), "slow start": (0.1, 0.9),
    "stubborn": (0.1, 0.8), "orphans": (0.1, 0.8), "port thief": (0.02, 0.2), "no launch": (0.02, 0.2),
    "bug": (0.002, 0.02), "lost": (0.01, 0.2), "delayed": (0.01, 0.3), "overload": (0.01, 0.2),
    "bad lock": (0.01, 0.2), "slow thread": (0.1, 0.9),
}  # fmt: skip
"""Faults that a step may meet: the least and the greatest probability that a seed gives them."""
PACES: dict[str, tuple[float, float]] = {
    "kill": (5.0, 60.0), "kill at a step": (5.0, 60.0), "power cut": (10.0, 100.0), "flap": (2.0, 40.0),
    "no space": (10.0, 80.0), "bad disk": (10.0, 80.0), "clock jump": (2.0, 40.0), "lease lost": (5.0, 60.0),
    "signal": (10.0, 80.0), "sudden death": (2.0, 40.0), "reset": (3.0, 40.0), "cable": (5.0, 60.0),
    "rolling restart": (3.0, 40.0),
}  # fmt: skip
"""Faults that come with time: the least and the greatest mean of the seconds between two of them."""


@dataclass(frozen=True)
class Draw:
    """Everything that a seed decides before a run begins. The same generator goes on during the run."""

    seed: int
    shape: Shape
    replicas: int
    min_healthy: int
    cap: int | None
    nodes: int
    """Hosts of each group."""
    rivals: int
    """Servers of other managers on the same machine."""
    records: int
    concurrency: int
    format: str
    """Of the output: "single" is a file, the others are of parts in a folder."""
    part_size: int
    flock: bool
    """The file system has locks that end with their holder. Else there are leases only."""
    one_host: bool
    """A dead holder of a lease can be seen to be dead."""
    compiles: bool
    reply: float
    rates: Mapping[str, float]
    """Of each kind of fault that this seed switches on: its probability, or mean seconds between two."""
    calm_after: float
    """Seconds after which nothing goes wrong any more."""

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:.3g}" for name, rate in self.rates.items())
        return (
            f"seed {self.seed}: {self.shape}, {self.replicas} replicas, {self.rivals} rivals, {self.records} records "
            f"as {self.format}; faults for {self.calm_after:.0f} s: {rates or 'none'}"
        )


def draw(random: Random, seed: int) -> Draw:
    """Swarm testing (Groce and others, ISSTA 2012): a run with a few kinds of faults goes deeper into each than one
    that has them all, and which ones matters; so each seed takes a subset, at rates of its own."""
    share = random.choice((0.1, 0.3, 0.5, 0.9))
    kinds = {**ODDS, **PACES}
    rates = {kind: random.uniform(*kinds[kind]) for kind in kinds if random.random() < share}
    shape: Shape = random.choice(("server", "fleet", "fleet", "groups"))
    replicas = 1 if shape == "server" else random.randint(1, 4 if shape == "fleet" else 2)
    return Draw(
        seed=seed, shape=shape, replicas=replicas, min_healthy=random.randint(1, replicas),
        cap=random.choice((None, 1, 3)) if shape != "server" else None, nodes=random.randint(2, 3),
        rivals=random.choice((0, 0, 1, 2)), records=random.randint(1, 40), concurrency=random.randint(1, 12),
        format=random.choice(("single", "jsonl", "jsonl.gz")), part_size=random.randint(1, 9),
        flock=random.random() < 0.6, one_host=random.random() < 0.5, compiles=random.random() < 0.8,
        reply=random.choice((0.0, 0.1, 1.0, 4.0)), rates=rates, calm_after=random.choice((10.0, 30.0, 90.0)),
    )  # fmt: skip


def life(random: Random, rates: Mapping[str, float], reply: float) -> Life:
    """What one start of a server does, under these probabilities."""

    def happens(kind: str) -> bool:
        return random.random() < rates.get(kind, 0.0)

    ready = random.uniform(1.0, 12.0) if happens("slow start") else random.uniform(0.05, 1.0)
    hangs = random.choice(("never", "wedged", "deaf", "stands", "dead")) if happens("hang") else ""
    when = random.uniform(0.0, 20.0)
    crash = happens("crash")
    hopeless = happens("hopeless")
    return Life(
        listens=random.uniform(0.0, ready),
        ready=inf if hangs == "never" else ready,
        exits=0.01 if hopeless else random.uniform(0.0, 25.0) if crash else None,
        code=random.choice((0, 1, -9, -11)),
        says=((0.0, "error: unrecognized arguments: --x"),) if hopeless else ((0.01, "phase load 1/2"),),
        term=None if happens("stubborn") else random.uniform(0.0, 2.0),
        kill=random.uniform(0.0, 0.5),
        orphans=happens("orphans"),
        deaf=when if hangs == "deaf" else None,
        wedged=when if hangs == "wedged" else None,
        stands=when if hangs == "stands" else None,
        dead=when if hangs == "dead" else None,
        tells_load=random.random() < 0.5,
        stolen=happens("port thief"),
        reply=reply * random.uniform(0.5, 1.5),
    )  # fmt: skip
