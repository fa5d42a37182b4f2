"""What is known of a group, the events that change it, and how. Pure, so a journal replays to the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis
from lifecycle.failures import counted, deadline, failures_after, is_hopeless, is_repeated, of_fault
from lifecycle.server_facts import BackoffOver, Fault, Kill, Shutdown, Start, Stop


@dataclass(frozen=True, slots=True)
class MeetingFailed(Event):
    """The other hosts cannot be met: the address or the port is not to be had."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class HostLeaves(Event):
    """A host was told to end (SIGTERM, Ctrl-C there). The group drains as if the head had been told."""

    rank: int
    drain: float | None = None
    kill: float | None = None
    """As in `lifecycle.server_facts.Stop`."""


@dataclass(frozen=True, slots=True)
class Gathered(Event):
    """Every host is there."""


@dataclass(frozen=True, slots=True)
class NotGathered(Event):
    """The deadline has passed, and some hosts are not there."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class PortFailed(Event):
    """The port at which the engine's parts would meet is not to be had."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class AllHealthy(Event):
    """Every member is Healthy."""

    model: str = ""
    """The name that the member which serves reports for its model."""


@dataclass(frozen=True, slots=True)
class MemberLost(Event):
    """The first member that is not there any more, or not to be seen: its host has gone."""

    member: str
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class AllEnded(Event):
    """No member is left, as far as can be seen."""

    unseen: tuple[str, ...] = ()
    """Members whose end nobody could see: their host did not answer any more."""


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        Start, Stop, Kill, Shutdown, Fault, MeetingFailed, HostLeaves, Gathered, NotGathered, PortFailed, AllHealthy,
        MemberLost, AllEnded, BackoffOver,
    )
}  # fmt: skip


@dataclass(frozen=True)
class GroupFacts:
    """The guards' whole world."""

    max_attempts: int = 5
    attempt_window: float = 600.0
    """Seconds of health that wipe out earlier failures."""
    attempt: int = 0
    """Starts begun so far; 0 before the first."""
    failures: int = 0
    """Failed attempts in a row."""
    failed_to_start: bool = False
    """The last failure was that of a start, and not of what had been ready."""
    repeated: bool = False
    """The last two starts failed in the very same way."""
    healthy_since: float | None = None
    model: str = ""
    stopping: bool = False
    graceful: bool = False
    """Requests in flight may finish first."""
    drain_by: float | None = None
    """Unix seconds until which they may; None: as configured."""
    kill_by: float | None = None
    """Unix seconds of SIGKILL; None: as configured."""
    killed: bool = False
    faults: int = 0
    diagnosis: Diagnosis | None = None
    """Why the last attempt failed."""


def stopping(facts: GroupFacts) -> bool:
    return facts.stopping


def may_retry(facts: GroupFacts) -> bool:
    """The last failure is worth another attempt of the whole group, and there is one left."""
    return not is_hopeless(facts.diagnosis) and not facts.repeated and facts.failures < facts.max_attempts


def may_force(facts: GroupFacts) -> bool:
    """The first fault while draining: kill every member. A second one gives up."""
    return facts.faults <= 1


def reduce(facts: GroupFacts, event: Event, at: float) -> GroupFacts:
    """The facts after `event` at Unix time `at`."""
    match event:
        case Start() | BackoffOver():
            return replace(facts, attempt=facts.attempt + 1)
        case AllHealthy(model=model):
            return replace(facts, healthy_since=at, model=model)
        case Stop(drain=drain, kill=kill) | HostLeaves(drain=drain, kill=kill):
            drain_by, kill_by = deadline(facts.drain_by, drain, at), deadline(facts.kill_by, kill, at)
            return replace(_stopping(facts), drain_by=drain_by, kill_by=kill_by)
        case Shutdown():
            return _stopping(facts)
        case Kill():
            return replace(facts, stopping=True, graceful=False, killed=True)
        case Fault(activity=activity, error=error):
            found = of_fault(activity, error, facts.diagnosis)
            return replace(facts, faults=facts.faults + 1, graceful=False, killed=True, diagnosis=found)
        case MeetingFailed(diagnosis=found) | NotGathered(diagnosis=found):
            return replace(facts, diagnosis=found)
        case PortFailed(diagnosis=found) | MemberLost(diagnosis=found):
            return _failed(facts, found, at)
        case _:
            return facts


def _stopping(facts: GroupFacts) -> GroupFacts:
    return replace(facts, stopping=True, graceful=facts.healthy_since is not None and not facts.killed)


def _failed(facts: GroupFacts, found: Diagnosis, at: float) -> GroupFacts:
    """Count a failure against the budget, unless a long healthy period makes it the first again."""
    was_ready = facts.healthy_since is not None
    failures = failures_after(facts.failures, facts.healthy_since, at, facts.attempt_window)
    repeated = not was_ready and facts.failed_to_start and is_repeated(facts.diagnosis, found)
    return replace(
        facts,
        diagnosis=counted(found, failures, facts.max_attempts, repeated=repeated),
        failures=failures,
        failed_to_start=not was_ready,
        repeated=repeated,
        healthy_since=None,
        graceful=False,
    )
