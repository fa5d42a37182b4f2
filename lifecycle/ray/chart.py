"""THE table of one replica's place on a cluster. The server that lives there has a chart of its own
(`lifecycle.server_chart`), which runs inside the actor; what becomes of it is told to the driver as it happens."""

from __future__ import annotations

from lifecycle.chart import Chart, Ignore, Span, State, Transition
from lifecycle.ray import facts
from lifecycle.ray.facts import Lost, NotPlaced, Placed, PlacementFacts, ServerEnded
from lifecycle.server_facts import BackoffOver, Ended, Fault, Kill, Shutdown, Start, Stop

STATES = (
    State("Idle", "configured, nothing held"),
    State("Placing", "waiting for the cluster: a connection, what the replica needs, an actor on it"),
    State("Hosting", "an actor lives on a node; its server starts, serves and is started again there"),
    State("Draining", "no new requests; those in flight finish; then the server and its actor are ended"),
    State("Backoff", "waiting before it is placed anew"),
    State("Stopped", "asked to stop, everything given back", final=True),
    State("Failed", "given up, and says why; everything given back", final=True),
)

ASKED = (Stop, Kill, Shutdown)
WORKING = ("Placing", "Hosting")

TRANSITIONS = (
    # the life of a place
    Transition((Start,), ("Idle",), "Placing"),
    Transition((Placed,), ("Placing",), "Hosting"),
    # asked to end
    Transition(ASKED, ("Idle", "Backoff"), "Stopped"),
    Transition(ASKED, WORKING, "Draining"),
    # gone wrong
    Transition((NotPlaced,), ("Placing",), "Draining"),
    Transition((Lost, ServerEnded), ("Hosting",), "Draining"),
    Transition((Fault,), WORKING, "Draining"),
    Transition((Fault,), ("Idle", "Backoff"), "Failed"),
    # the end of a place
    Transition((Lost, ServerEnded, Stop, Shutdown), ("Draining",), None),
    Transition((Kill,), ("Draining",), "Draining"),
    Transition((Fault,), ("Draining",), "Draining", ("may_force",)),
    Transition((Fault,), ("Draining",), "Failed", ("not may_force",)),
    Transition((Ended,), ("Draining",), "Stopped", ("stopping",)),
    Transition((Ended,), ("Draining",), "Backoff", ("not stopping", "may_retry")),
    Transition((Ended,), ("Draining",), "Failed", ("not stopping", "not may_retry")),
    # the next one
    Transition((BackoffOver,), ("Backoff",), "Placing"),
)

IGNORES = (Ignore((Placed, NotPlaced), ("Hosting", "Draining")),)  # sent before the server is hosted, or not at all

SPANS = (  # from the outermost to the innermost
    Span("hold_place", ("Placing",), ("Hosting", "Draining"), (Placed, NotPlaced), ("placement_timeout",),
         "placement group and actor; at its end they are given back, whatever the server does"),
    Span("follow_server", ("Hosting",), ("Draining",), (Lost, ServerEnded), meaning="news of the server, as they come"),
    Span("wind_down", ("Draining",), (), (Ended,), ("drain_timeout", "terminate_timeout"),
         "drain, end the server where it is, see it ended"),
    Span("back_off", ("Backoff",), (), (BackoffOver,), ("backoff_initial", "backoff_max")),
)  # fmt: skip

GUARDS = (facts.stopping, facts.may_retry, facts.may_force)

PLACEMENT: Chart[PlacementFacts] = Chart(
    name="placement",
    states=STATES,
    transitions=TRANSITIONS,
    reduce=facts.reduce,
    guards={guard.__name__: guard for guard in GUARDS},
    spans=SPANS,
    ignores=IGNORES,
    never_ignored=(Stop, Kill, Shutdown, Fault),
)
