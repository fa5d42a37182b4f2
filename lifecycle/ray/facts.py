"""What is known of one replica's place on a cluster, the events that change it, and how. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis
from lifecycle.failures import counted, deadline, failures_after, is_hopeless, of_fault
from lifecycle.server_facts import BackoffOver, Ended, Fault, Kill, Shutdown, Start, Stop


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """An actor lives on a node and has begun to host the server."""

    node: str
    """Its address."""
    actor_pid: int
    reason: str = ""
    """The same in words, for those who tell the story."""
    node_id: str = ""
    """As the cluster names it."""


@dataclass(frozen=True, slots=True)
class NotPlaced(Event):
    """Nowhere on the cluster: too little is free, or the nodes cannot host it."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The actor has gone, and its server with it: its process was killed, its node has died or is cut off."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class ServerEnded(Event):
    """The server has come to a final state where it is."""

    diagnosis: Diagnosis | None = None
    """Why it was given up; None: it was stopped."""


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (Start, Stop, Kill, Shutdown, Fault, Placed, NotPlaced, Lost, ServerEnded, Ended, BackoffOver)
}


NODES_TRIED = 2
"""On how many nodes a server may spend its attempts: where two agree, it is not the node."""


@dataclass(frozen=True)
class PlacementFacts:
    """The guards' whole world."""

    max_attempts: int = 5
    attempt_window: float = 600.0
    """Seconds at one place that wipe out earlier failures."""
    attempt: int = 0
    """Places asked for so far."""
    failures: int = 0
    """In a row."""
    placed_at: float | None = None
    """Unix seconds."""
    node: str = ""
    over: bool = False
    """Nothing runs at the present place any more."""
    node_id: str = ""
    avoid: tuple[str, ...] = ()
    """Ids of nodes on which the server has spent its own budget of attempts."""
    given_up: bool = False
    """It has done so on enough of them, or there is no other one."""
    stopping: bool = False
    killed: bool = False
    drain_by: float | None = None
    """Unix seconds until which requests in flight may go on; None: as configured."""
    kill_by: float | None = None
    """Unix seconds of SIGKILL; None: as configured."""
    faults: int = 0
    diagnosis: Diagnosis | None = None


def stopping(facts: PlacementFacts) -> bool:
    return facts.stopping


def may_retry(facts: PlacementFacts) -> bool:
    """Another place may do better, and there is an attempt left."""
    return not facts.given_up and not is_hopeless(facts.diagnosis) and facts.failures < facts.max_attempts


def may_force(facts: PlacementFacts) -> bool:
    """The first fault while draining: kill the actor. A second one gives up."""
    return facts.faults <= 1


def reduce(facts: PlacementFacts, event: Event, at: float) -> PlacementFacts:
    """The facts after `event` at Unix time `at`."""
    match event:
        case Start() | BackoffOver():
            return replace(facts, attempt=facts.attempt + 1, placed_at=None, node="", node_id="", over=False)
        case Placed(node=node, node_id=node_id):
            return replace(facts, node=node, node_id=node_id, placed_at=at)
        case NotPlaced(diagnosis=found) if facts.avoid and facts.diagnosis is not None and is_hopeless(found):
            only = replace(facts.diagnosis, summary=f"{facts.diagnosis.summary}; no other node: {found.summary}")
            return replace(facts, given_up=True, diagnosis=only)
        case NotPlaced(diagnosis=found):
            return _failed(facts, found, at)
        case Lost(diagnosis=found):
            return replace(facts if facts.stopping else _failed(facts, found, at), over=True)
        case ServerEnded(diagnosis=None):
            return replace(facts, over=True)
        case ServerEnded(diagnosis=found) if not facts.stopping:
            tried = (*facts.avoid, facts.node_id)
            return replace(facts, over=True, given_up=len(tried) >= NODES_TRIED, avoid=tried, diagnosis=found)
        case ServerEnded():
            return replace(facts, over=True)
        case Stop(drain=drain, kill=kill):
            drain_by, kill_by = deadline(facts.drain_by, drain, at), deadline(facts.kill_by, kill, at)
            return replace(facts, stopping=True, drain_by=drain_by, kill_by=kill_by)
        case Shutdown():
            return replace(facts, stopping=True)
        case Kill():
            return replace(facts, stopping=True, killed=True)
        case Fault(activity=activity, error=error):
            found = of_fault(activity, error)
            return replace(facts, faults=facts.faults + 1, killed=True, diagnosis=found)
        case _:
            return facts


def _failed(facts: PlacementFacts, found: Diagnosis, at: float) -> PlacementFacts:
    failures = failures_after(facts.failures, facts.placed_at, at, facts.attempt_window)
    return replace(facts, diagnosis=counted(found, failures, facts.max_attempts), failures=failures)
