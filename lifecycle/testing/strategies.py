"""Hypothesis strategies for what can happen to a simulated server. Needs the package hypothesis.

    @given(lives=st.lists(strategies.lives(), min_size=1), troubles=strategies.troubles())
    def test_my_code_survives_anything(lives, troubles): ...

Times lie on a grid of quarters of a second, so that things often happen at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from lifecycle.chart import Event
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import LaunchError, PortTaken, StokerError
from lifecycle.host import NoAnswer
from lifecycle.server_facts import (
    Adopted,
    Awoke,
    BecameReady,
    Ended,
    Exited,
    Fault,
    FoundKept,
    Idled,
    Kill,
    Launched,
    LaunchFailed,
    LockAcquired,
    LockFailed,
    LockSkipped,
    NotAdopted,
    NotAsleep,
    NotReady,
    PortsFailed,
    Shutdown,
    Sleep,
    Stalled,
    Start,
    StartTimedOut,
    Stop,
    Unwell,
    Wake,
    Wanted,
)
from lifecycle.testing.host import SimulatedHost, Turn
from lifecycle.testing.process import Life

LONGEST = 20.0
"""Seconds within which events come, unless told otherwise."""
WORDS = ("phase load", "phase load 1/2", "error: unrecognized arguments: --x", "Address already in use", "hello")


def times(longest: float = LONGEST) -> st.SearchStrategy[float]:
    """Quarters of a second from 0 to `longest`."""
    return st.integers(0, int(longest * 4)).map(lambda quarter: quarter / 4)


def lives() -> st.SearchStrategy[Life]:
    """What one attempt of a server does: anything."""
    return st.builds(
        Life,
        listens=st.none() | times(2),
        ready=st.none() | times(4),
        exits=st.none() | times(10),
        code=st.sampled_from([0, 1, 2, 127]),
        says=st.lists(st.tuples(times(6), st.sampled_from(WORDS)), max_size=3).map(tuple),
        term=st.none() | times(8),
        kill=times(1),
        orphans=st.booleans(),
        deaf=st.none() | times(10),
        wedged=st.none() | times(10),
        status=st.sampled_from([200, 200, 200, 401, 500]),
        model=st.sampled_from(["", "", "", "another"]),
        stolen=st.sampled_from([False, False, False, True]),
        reply=times(8),
    )


def good_lives() -> st.SearchStrategy[Life]:
    """What one attempt does that becomes ready; it may crash later, and ignore SIGTERM."""
    return st.builds(Life, ready=times(2), exits=st.none() | times(10), reply=times(4), term=st.none() | times(8))


def configs(**fixed: Any) -> st.SearchStrategy[ServerConfig]:
    """Configurations of a simulated server with times of seconds, so that a life is short; `fixed` settings are as
    given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "startup_timeout": st.sampled_from([1.0, 3.0, 30.0]),
        "no_progress_timeout": st.sampled_from([1.0, 3.0, 30.0]),
        "liveness_interval": st.sampled_from([0.5, 1.0, 10.0]),
        "liveness_timeout": st.sampled_from([0.5, 1.0, 10.0]),
        "liveness_failures": st.integers(1, 3),
        "stall_timeout": st.sampled_from([1.0, 2.0, 20.0]),
        "drain_timeout": st.sampled_from([0.0, 1.0, 5.0]),
        "backoff_initial": st.sampled_from([0.0, 0.5, 1.0]),
        "backoff_max": st.sampled_from([1.0, 4.0]),
        "max_attempts": st.integers(1, 4),
        "attempt_window": st.sampled_from([1.0, 600.0]),
        "max_retries": st.integers(0, 10),
        "model": st.sampled_from(["", "simulated"]),
    }
    kept = {name: strategy for name, strategy in drawn.items() if name not in fixed}
    return st.builds(ServerConfig, st.just("simulated"), **kept, **{name: st.just(fixed[name]) for name in fixed})


def asked() -> st.SearchStrategy[Event]:
    """What a caller may ask of a server."""
    return st.sampled_from([Stop(), Stop(), Kill(), Shutdown(), Start(), Sleep(), Wake()])


def event_scripts(longest: float = LONGEST) -> st.SearchStrategy[list[tuple[float, Event]]]:
    """What a caller asks, and when: in any order, also by several at once."""
    return st.lists(st.tuples(times(longest), asked()), max_size=3)


def diagnoses() -> st.SearchStrategy[Diagnosis]:
    """Why something failed."""
    return st.builds(
        Diagnosis,
        cause=st.sampled_from(["exited", "port-taken", "missing-model", "stalled"]),
        summary=st.just("it failed"),
        verdict=st.sampled_from(Verdict),
        exit_code=st.sampled_from([None, 1, -9]),
        evidence=st.sampled_from(["", "one", "other 1", "other 2"]),
    )


FAILED = (
    LockFailed, NotAdopted, PortsFailed, LaunchFailed, Exited, NotReady, StartTimedOut, Unwell, Stalled, NotAsleep,
)  # fmt: skip
OUTCOMES: Mapping[type[Event], st.SearchStrategy[Event]] = {
    LockAcquired: st.just(LockAcquired("key")),
    LockSkipped: st.just(LockSkipped("complete")),
    Launched: st.builds(Launched, st.integers(2, 9), st.integers(1024, 1030), st.just("log")),
    BecameReady: st.just(BecameReady("model", "/health")),
    Awoke: st.just(Awoke()),
    FoundKept: st.builds(FoundKept, st.integers(2, 9), st.none() | diagnoses()),
    Adopted: st.builds(Adopted, st.integers(2, 9), st.integers(1024, 1030), st.just("log")),
    Idled: st.just(Idled(60.0)),
    Wanted: st.just(Wanted()),
    Ended: st.just(Ended()),
    Fault: st.just(Fault("an activity", "RuntimeError: a bug")),
    **{kind: st.builds(kind, diagnoses()) for kind in FAILED},
}
"""What the activities of a server report."""


@dataclass(frozen=True)
class Trouble:
    """What one call of an operation of a `SimulatedHost` meets."""

    operation: str
    delay: float
    """Seconds before it goes on or fails."""
    error: Callable[[], BaseException] | None
    """Makes what it fails with; None: it goes on."""

    def turn(self) -> Turn:
        """For `SimulatedHost.plan`. Made anew for each run: a `Turn` is used up."""
        return Turn(self.delay, self.error() if self.error else None)


def bug() -> BaseException:
    """What a mistake in an adapter, or in Stoker, raises."""
    return RuntimeError("a bug")


ERRORS: Mapping[str, tuple[Callable[[], BaseException] | None, ...]] = {
    "compile_lock": (None, bug, lambda: StokerError("no locks here"), lambda: OSError(38, "no locks")),
    "hold_ports": (None, bug, lambda: PortTaken(80, "somebody"), lambda: OSError(99, "no such address")),
    "spawn": (None, bug, lambda: LaunchError("no such program")),
    "listening": (None, bug),
    "probe": (None, bug, lambda: NoAnswer("reset")),
    "exited": (None, bug),
}
"""How operations fail."""


def troubles() -> st.SearchStrategy[list[Trouble]]:
    """Faults of a host. At most one of them in `end`, which is called again: if it never worked, nobody could end the
    process."""
    some = st.sampled_from(sorted(ERRORS)).flatmap(
        lambda operation: st.builds(Trouble, st.just(operation), times(3), st.sampled_from(ERRORS[operation]))
    )
    end = st.builds(Trouble, st.just("end"), times(1), st.sampled_from([None, bug]))
    return st.builds(list.__add__, st.lists(some, max_size=4), st.lists(end, max_size=1))


def plan(host: SimulatedHost, found: list[Trouble]) -> None:
    """Let the calls of a host meet these troubles."""
    for trouble in found:
        host.plan(trouble.operation, trouble.turn())
