"""What is known of a fleet, the events that change it, and how. Pure, so a journal replays to the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis
from lifecycle.failures import of_fault
from lifecycle.server_facts import Ended, Fault, Kill, Shutdown, Start, Stop


@dataclass(frozen=True, slots=True)
class ReplicaHealthy(Event):
    """A replica serves."""

    name: str


@dataclass(frozen=True, slots=True)
class ReplicaAway(Event):
    """A replica does not serve now, and will again: it starts, sleeps, waits for its next attempt, is replaced."""

    name: str


@dataclass(frozen=True, slots=True)
class ReplicaLost(Event):
    """A replica has come to its end, and nobody replaces it."""

    name: str
    diagnosis: Diagnosis | None = None
    """Why it was given up; None: it was stopped."""


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (Start, Stop, Kill, Shutdown, Fault, ReplicaHealthy, ReplicaAway, ReplicaLost, Ended)
}


@dataclass(frozen=True)
class FleetFacts:
    """The guards' whole world."""

    replicas: int = 1
    min_healthy: int = 1
    healthy: tuple[str, ...] = ()
    """Names of the replicas that serve now."""
    lost: tuple[str, ...] = ()
    """Names of those that never will again."""
    stopping: bool = False
    killed: bool = False
    faults: int = 0
    diagnosis: Diagnosis | None = None
    """Why the fleet was given up, or why the latest of its replicas was."""


def enough(facts: FleetFacts) -> bool:
    """At least `min_healthy` replicas serve."""
    return len(facts.healthy) >= facts.min_healthy


def may_be_enough(facts: FleetFacts) -> bool:
    """At least `min_healthy` replicas serve or may yet."""
    return facts.replicas - len(facts.lost) >= facts.min_healthy


def stopping(facts: FleetFacts) -> bool:
    return facts.stopping


def may_force(facts: FleetFacts) -> bool:
    """The first fault while draining: kill all replicas. A second one gives up."""
    return facts.faults <= 1


def reduce(facts: FleetFacts, event: Event, at: float) -> FleetFacts:
    """The facts after `event` at Unix time `at`."""
    match event:
        case ReplicaHealthy(name=name):
            return replace(facts, healthy=_with(facts.healthy, name), lost=_without(facts.lost, name))
        case ReplicaAway(name=name):
            return replace(facts, healthy=_without(facts.healthy, name), lost=_without(facts.lost, name))
        case ReplicaLost(name=name, diagnosis=found):
            after = replace(facts, healthy=_without(facts.healthy, name), lost=_with(facts.lost, name))
            over = facts.stopping or facts.faults > 0 or not may_be_enough(facts)
            return after if over else replace(after, diagnosis=_told(after, name, found))
        case Stop() | Shutdown():
            return replace(facts, stopping=True)
        case Kill():
            return replace(facts, stopping=True, killed=True)
        case Fault(activity=activity, error=error):
            found = of_fault(activity, error)
            return replace(facts, faults=facts.faults + 1, killed=True, diagnosis=found)
        case _:
            return facts


def _told(facts: FleetFacts, name: str, found: Diagnosis | None) -> Diagnosis:
    """Why the latest replica was lost, and what that leaves of the fleet."""
    if found is None:
        found = Diagnosis("stopped", "it was stopped", advice="a rolling restart brings it back")
    left = facts.replicas - len(facts.lost)
    return replace(
        found,
        summary=f"{name}: {found.summary}; {left} of {facts.replicas} replicas left, min_healthy = {facts.min_healthy}",
    )


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted({*names, name}))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(each for each in names if each != name)
