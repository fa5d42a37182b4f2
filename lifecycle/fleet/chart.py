"""THE table of a fleet's life. Each replica's own life is a chart of its own (`lifecycle.server_chart`)."""

from __future__ import annotations

from lifecycle.chart import Chart, Span, State, Transition
from lifecycle.fleet import facts
from lifecycle.fleet.facts import FleetFacts, ReplicaAway, ReplicaHealthy, ReplicaLost
from lifecycle.server_facts import Ended, Fault, Kill, Shutdown, Start, Stop

STATES = (
    State("Idle", "configured, nothing held"),
    State("Starting", "fewer than min_healthy replicas serve, yet or again; those that do are sent requests"),
    State("Healthy", "at least min_healthy replicas serve"),
    State("Draining", "no new requests; every replica drains and ends"),
    State("Stopped", "asked to stop, everything released", final=True),
    State("Failed", "too few replicas are left, and why; everything released", final=True),
)

ASKED = (Stop, Kill, Shutdown)
NEWS = (ReplicaHealthy, ReplicaAway, ReplicaLost)
WORKING = ("Starting", "Healthy")

TRANSITIONS = (
    Transition((Start,), ("Idle",), "Starting"),
    # the replicas come and go
    Transition((ReplicaHealthy,), ("Starting",), "Healthy", ("enough",)),
    Transition((ReplicaHealthy,), ("Starting",), None, ("not enough",)),
    Transition((ReplicaHealthy,), ("Healthy",), None),
    Transition((ReplicaAway,), ("Starting",), None),
    Transition((ReplicaAway,), ("Healthy",), None, ("enough",)),
    Transition((ReplicaAway,), ("Healthy",), "Starting", ("not enough",)),
    Transition((ReplicaLost,), ("Starting",), None, ("may_be_enough",)),
    Transition((ReplicaLost,), ("Starting",), "Draining", ("not may_be_enough",)),
    Transition((ReplicaLost,), ("Healthy",), None, ("enough",)),
    Transition((ReplicaLost,), ("Healthy",), "Starting", ("not enough", "may_be_enough")),
    Transition((ReplicaLost,), ("Healthy",), "Draining", ("not enough", "not may_be_enough")),
    # asked to end
    Transition(ASKED, ("Idle",), "Stopped"),
    Transition(ASKED, WORKING, "Draining"),
    # gone wrong
    Transition((Fault,), WORKING, "Draining"),
    Transition((Fault,), ("Idle",), "Failed"),
    # the end
    Transition((*NEWS, Stop, Shutdown), ("Draining",), None),
    Transition((Kill,), ("Draining",), "Draining"),
    Transition((Fault,), ("Draining",), "Draining", ("may_force",)),
    Transition((Fault,), ("Draining",), "Failed", ("not may_force",)),
    Transition((Ended,), ("Draining",), "Stopped", ("stopping",)),
    Transition((Ended,), ("Draining",), "Failed", ("not stopping",)),
)

SPANS = (
    Span("keep", ("Starting",), ("Healthy", "Draining"), NEWS, meaning="a replica in each slot, and news of it"),
    Span("wind_down", ("Draining",), (), (Ended,), ("drain_timeout", "terminate_timeout"), "end all replicas at once"),
)

GUARDS = (facts.enough, facts.may_be_enough, facts.stopping, facts.may_force)

FLEET: Chart[FleetFacts] = Chart(
    name="fleet",
    states=STATES,
    transitions=TRANSITIONS,
    reduce=facts.reduce,
    guards={guard.__name__: guard for guard in GUARDS},
    spans=SPANS,
    never_ignored=(Stop, Kill, Shutdown, Fault),
)
