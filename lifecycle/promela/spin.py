"""Runs spin, a model checker (https://spinroot.com, Debian's package `spin`), and a C compiler on Promela text."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lifecycle.errors import StokerError
from lifecycle.promela.claims import Claim

LONGEST_PATH = 2_000_000
"""Steps; a search that meets a longer path has not seen everything, and is an error."""
SAFE = "all_that_is_safe"
NO_DEADLOCK = "no_deadlock"
"""Also that every assertion holds: one row for each event that is taken, and no activity is refused."""
CLAIM = ("-a", "-E", "-N")
"""Of a search for a way to break a claim; deadlocks have one of their own."""
LAST_EVENTS = 20
"""Of a way to break a claim, that are told."""


class SpinError(StokerError):
    """Spin or the compiler is missing, or could not finish; the message says which and why."""


@dataclass(frozen=True)
class Verdict:
    """What became of one claim, or of several that were checked together."""

    claim: str
    holds: bool
    states: int
    """Different states that were stored."""
    seconds: float
    """Of the search, without compiling."""
    story: str = ""
    """If it does not hold: the events of one way to break it."""


def missing() -> str:
    """What there is not of spin and gcc, and the way out; empty if both are there."""
    lost = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return f"{' and '.join(lost)} not found: apt-get install spin gcc" if lost else ""


def verify(
    text: str, claims: Sequence[Claim], *, depth: int | None = None, fast: bool = False, only: bool = False
) -> tuple[Verdict, ...]:
    """Have spin search all states of `text` for a deadlock, a broken assertion and a broken claim.

    Claims of safety are checked together, and one by one only if one of them is broken, to say which.

    Args:
        depth: letters that a mailbox holds; None: as the text says.
        fast: spend time on compiling, which pays for searches of more than ten seconds.
        only: leave out the search for a deadlock.

    Raises `SpinError`.
    """
    lost = missing()
    if lost:
        raise SpinError(lost)
    with tempfile.TemporaryDirectory(prefix="stk-spin-") as folder:
        search = _Search(Path(folder), text, claims, depth, fast)
        return (*(() if only else (search.deadlock(),)), *search.all())


class _Search:
    def __init__(self, folder: Path, text: str, claims: Sequence[Claim], depth: int | None, fast: bool) -> None:
        self._folder = folder
        self._claims = claims
        self._defines = [] if depth is None else [f"-DDEPTH={depth}"]
        self._level = "-O2" if fast else "-O0"
        safe = " && ".join(f"({claim.formula})" for claim in claims if not claim.live)
        (folder / "model.pml").write_text(text + (f"ltl {SAFE} {{ {safe} }}\n" if safe else ""), encoding="utf-8")

    def deadlock(self) -> Verdict:
        self._compile((), "-DSAFETY", "-DNOCLAIM")
        return self._run(NO_DEADLOCK)

    def all(self) -> list[Verdict]:
        found: list[Verdict] = []
        self._compile(("-DCLAIMS",))
        safe = [claim.name for claim in self._claims if not claim.live]
        together = [self._run(SAFE, *CLAIM, SAFE)] if safe else []
        if all(verdict.holds for verdict in together):
            found += together
        else:
            found += [self._run(name, *CLAIM, name) for name in safe]
        found += [self._run(claim.name, "-f", *CLAIM, claim.name) for claim in self._claims if claim.live]
        return found

    def _compile(self, defines: tuple[str, ...], *options: str) -> None:
        self._defined = (*self._defines, *defines)
        said = self._call("spin", *self._defined, "-a", "model.pml")
        if re.search(r"\berror\b", said, re.IGNORECASE):
            raise SpinError(f"spin does not understand the model: {said}")
        self._call("gcc", self._level, "-w", "-DNFAIR=3", *options, "-o", "pan", "pan.c")

    def _run(self, claim: str, *options: str) -> Verdict:
        began = time.monotonic()
        said = self._call("./pan", "-n", "-b", f"-m{LONGEST_PATH}", *options)
        seconds = time.monotonic() - began
        errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
        if errors is None or states is None or "max search depth" in said or "out of memory" in said:
            raise SpinError(f"the search for {claim} did not finish: {said}")
        holds = errors[1] == "0"
        return Verdict(claim, holds, int(states[1]), seconds, "" if holds else self._story(said))

    def _story(self, said: str) -> str:
        wrong = next((line.strip() for line in said.splitlines() if line.startswith("pan:1:")), "")
        told = self._call("spin", *self._defined, "-t", "-T", "model.pml")
        lines = [line.strip() for line in told.replace("<<<<<START OF CYCLE>>>>>", "- and for ever:").splitlines()]
        events = [line for line in lines if line.startswith("- ")]
        left_out = [f"({len(events) - LAST_EVENTS} events)"] if len(events) > LAST_EVENTS else []
        return "\n  ".join((wrong, *left_out, *events[-LAST_EVENTS:]))

    def _call(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode and command[0] != "./pan":
            raise SpinError(f"{' '.join(command)} failed: {done.stdout}")
        return done.stdout
