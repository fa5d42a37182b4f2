"""THE table of the life of a host that is not the head of its group. The members on it are servers, each with a chart
of its own (`lifecycle.server_chart`); the head decides when they start and end (`lifecycle.group.chart`)."""

from __future__ import annotations

from lifecycle.chart import Chart, Ignore, Span, State, Transition
from lifecycle.group import worker_facts as facts
from lifecycle.group.worker_facts import Dismissed, HeadLost, Joined, NotJoined, WorkerFacts
from lifecycle.server_facts import Ended, Fault, Kill, Shutdown, Start, Stop

STATES = (
    State("Idle", "configured, nothing held"),
    State("Joining", "looking for the head; no member runs"),
    State("Present", "with the head; members of this host start, serve and end as it says"),
    State("Draining", "the head has gone or the group has ended: every member of this host is ended"),
    State("Stopped", "the group was told to stop, or this host was; no member is left", final=True),
    State("Failed", "the group was given up, or never found; says why; no member is left", final=True),
)

TRANSITIONS = (
    # the life of a host
    Transition((Start,), ("Idle",), "Joining"),
    Transition((Joined,), ("Joining",), "Present"),
    Transition((NotJoined,), ("Joining",), "Failed"),
    Transition((HeadLost, Dismissed), ("Present",), "Draining"),
    # asked to end: the head is told, and ends the whole group in order
    Transition((Stop, Kill, Shutdown), ("Idle", "Joining"), "Stopped"),
    Transition((Stop, Shutdown), ("Present",), None),
    Transition((Kill,), ("Present",), "Draining"),
    # gone wrong
    Transition((Fault,), ("Idle", "Joining"), "Failed"),
    Transition((Fault,), ("Present",), "Draining"),
    # the end of an attempt
    Transition((Stop, Shutdown), ("Draining",), None),
    Transition((Kill,), ("Draining",), "Draining"),
    Transition((Fault,), ("Draining",), "Draining", ("may_force",)),
    Transition((Fault,), ("Draining",), "Failed", ("not may_force",)),
    Transition((Ended,), ("Draining",), "Joining", ("not over",)),
    Transition((Ended,), ("Draining",), "Stopped", ("over", "not given_up")),
    Transition((Ended,), ("Draining",), "Failed", ("over", "given_up")),
)

IGNORES = (
    Ignore((HeadLost, Dismissed), ("Joining",)),  # sent only after `Joined`
    Ignore((Joined, NotJoined), ("Present",)),  # sent only before
)

SPANS = (  # from the outermost to the innermost
    Span("host_members", ("Present",), ("Draining",), (),
         meaning="the members of this host; what is left of them at its end is killed"),
    Span("attend", ("Joining",), ("Present",), (Joined, NotJoined, HeadLost, Dismissed),
         ("gather_timeout", "heartbeat_timeout"), "find the head, then do as it says and tell it what happens"),
    Span("wind_down", ("Draining",), (), (Ended,), ("terminate_timeout",), "end every member, see each gone"),
)  # fmt: skip

GUARDS = (facts.over, facts.given_up, facts.may_force)

WORKER: Chart[WorkerFacts] = Chart(
    name="worker",
    states=STATES,
    transitions=TRANSITIONS,
    reduce=facts.reduce,
    guards={guard.__name__: guard for guard in GUARDS},
    spans=SPANS,
    ignores=IGNORES,
    never_ignored=(Stop, Kill, Shutdown, Fault),
)
