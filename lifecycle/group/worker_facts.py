"""What is known of a host of a group that is not its head, the events that change it, and how. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis
from lifecycle.failures import deadline, of_fault
from lifecycle.server_facts import Ended, Fault, Kill, Shutdown, Start, Stop


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """The head has taken this host in."""

    head: str
    """Its address and port."""


@dataclass(frozen=True, slots=True)
class NotJoined(Event):
    """The head was not found in time, or does not want this host."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class HeadLost(Event):
    """The connection to the head has gone, or nothing has come over it for too long."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Dismissed(Event):
    """The head says that the group has ended."""

    diagnosis: Diagnosis | None = None
    """Why it was given up; None: it was told to stop."""


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (Start, Stop, Kill, Shutdown, Fault, Joined, NotJoined, HeadLost, Dismissed, Ended)
}


@dataclass(frozen=True)
class WorkerFacts:
    """The guards' whole world."""

    attempt: int = 0
    """Times that the head has taken this host in."""
    stopping: bool = False
    kill_by: float | None = None
    """Unix seconds at which somebody else ends this host; None: nobody does."""
    killed: bool = False
    dismissed: bool = False
    faults: int = 0
    diagnosis: Diagnosis | None = None
    """Why the group, or this host, was given up; while it looks for the head again, why it lost it."""


def over(facts: WorkerFacts) -> bool:
    """This host does not look for the head again."""
    return facts.stopping or facts.dismissed or facts.faults > 0


def given_up(facts: WorkerFacts) -> bool:
    """It was not told to stop, and the group has not stopped in order."""
    return facts.diagnosis is not None and (facts.dismissed or facts.faults > 0)


def may_force(facts: WorkerFacts) -> bool:
    """The first fault while draining: kill every member. A second one gives up."""
    return facts.faults <= 1


def reduce(facts: WorkerFacts, event: Event, at: float) -> WorkerFacts:
    """The facts after `event`."""
    match event:
        case Joined():
            return replace(facts, attempt=facts.attempt + 1)
        case Stop(kill=kill):
            return replace(facts, stopping=True, kill_by=deadline(facts.kill_by, kill, at))
        case Shutdown():
            return replace(facts, stopping=True)
        case Kill():
            return replace(facts, stopping=True, killed=True)
        case HeadLost(diagnosis=found) | NotJoined(diagnosis=found):
            return replace(facts, diagnosis=found)
        case Dismissed(diagnosis=dismissal):
            return replace(facts, dismissed=True, diagnosis=dismissal)
        case Fault(activity=activity, error=error):
            found = of_fault(activity, error)
            return replace(facts, faults=facts.faults + 1, killed=True, diagnosis=found)
        case _:
            return facts
