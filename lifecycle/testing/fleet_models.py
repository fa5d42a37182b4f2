"""The charts of a fleet and of a replica's place on a cluster as finite models: sample events, and which facts behave
alike."""

from __future__ import annotations

from dataclasses import replace

from lifecycle.chart import Chart, Event
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.fleet.chart import FLEET
from lifecycle.fleet.facts import FleetFacts, ReplicaAway, ReplicaHealthy, ReplicaLost
from lifecycle.paths import Model
from lifecycle.ray.chart import PLACEMENT
from lifecycle.ray.facts import NODES_TRIED, Lost, NotPlaced, Placed, PlacementFacts, ServerEnded
from lifecycle.server_facts import BackoffOver, Ended, Fault, Kill, Shutdown, Start, Stop

WHY = Diagnosis("exited", "it died")
NAMES = ("a-0", "a-1")
FLEET_SAMPLES: tuple[Event, ...] = (
    Start(), Stop(), Kill(), Shutdown(), Fault("keep", "RuntimeError: a bug"), Ended(),
    *(kind(name) for kind in (ReplicaHealthy, ReplicaAway, ReplicaLost) for name in NAMES),
    ReplicaLost(NAMES[0], WHY),
)  # fmt: skip

HOPELESS = Diagnosis("no-resources", "it will never work", Verdict.HOPELESS)
UNKNOWN = Diagnosis("actor-lost", "a node has gone")
PLACEMENT_SAMPLES: tuple[Event, ...] = (
    Start(), Stop(), Stop(1.0, 2.0), Kill(), Shutdown(), Fault("hold_place", "RuntimeError: a bug"), Placed("a", 1),
    NotPlaced(HOPELESS), NotPlaced(UNKNOWN), Lost(UNKNOWN), ServerEnded(), ServerEnded(UNKNOWN), Ended(), BackoffOver(),
)  # fmt: skip


def abstract_fleet(facts: FleetFacts) -> FleetFacts:
    """Facts that behave alike become the same: guards do not ask what went wrong."""
    return replace(facts, faults=min(facts.faults, 2), diagnosis=facts.diagnosis and WHY)


def fleet_model(chart: Chart[FleetFacts] = FLEET) -> Model[FleetFacts]:
    """Fleets of two replicas, of which one is enough or both are needed."""
    return Model(
        chart,
        tuple(FleetFacts(len(NAMES), needed) for needed in (1, 2)),
        FLEET_SAMPLES,
        abstract_fleet,
        outside=(Start, Stop, Kill, Shutdown),
        anywhere=(Fault,),
    )


def abstract_placement(facts: PlacementFacts) -> PlacementFacts:
    """Facts that behave alike become the same: a node is one that was tried, or not."""
    hopeless = facts.diagnosis is not None and facts.diagnosis.verdict is Verdict.HOPELESS
    return replace(
        facts,
        attempt=min(facts.attempt, 1),
        failures=min(facts.failures, facts.max_attempts),
        placed_at=None if facts.placed_at is None else 0.0,
        node="",
        node_id="",
        avoid=("somewhere",) * min(len(facts.avoid), NODES_TRIED),
        drain_by=None,
        kill_by=None,
        faults=min(facts.faults, 2),
        diagnosis=facts.diagnosis and (HOPELESS if hopeless else UNKNOWN),
    )


def placement_model(chart: Chart[PlacementFacts] = PLACEMENT, *, max_attempts: int = 2) -> Model[PlacementFacts]:
    """A replica that is placed anew until `max_attempts` failures in a row."""
    return Model(
        chart,
        (PlacementFacts(max_attempts=max_attempts),),
        PLACEMENT_SAMPLES,
        abstract_placement,
        outside=(Start, Stop, Kill, Shutdown),
        anywhere=(Fault,),
    )
