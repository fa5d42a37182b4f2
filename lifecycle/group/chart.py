"""THE table of a group's life. Each member's own life is a chart of its own (`lifecycle.server_chart`), and so is that
of a host which is not the head (`lifecycle.group.worker_chart`)."""

from __future__ import annotations

from lifecycle.chart import Chart, Ignore, Span, State, Transition
from lifecycle.group import facts
from lifecycle.group.facts import (
    AllEnded,
    AllHealthy,
    Gathered,
    GroupFacts,
    HostLeaves,
    MeetingFailed,
    MemberLost,
    NotGathered,
    PortFailed,
)
from lifecycle.server_facts import BackoffOver, Fault, Kill, Shutdown, Start, Stop

STATES = (
    State("Idle", "configured, nothing held"),
    State("Gathering", "waiting until every host is there; no member runs"),
    State("Starting", "the members start in order, each one Healthy before the next begins"),
    State("Healthy", "every member is Healthy; requests are served"),
    State("Draining", "no new requests; those in flight finish if all is well; then every member is ended"),
    State("Backoff", "waiting before the next attempt of the whole group"),
    State("Stopped", "asked to stop; no member is left, on any host", final=True),
    State("Failed", "given up, and says why; no member is left, on any host", final=True),
)

ASKED = (Stop, Kill, Shutdown, HostLeaves)

TRANSITIONS = (
    # the life of a group
    Transition((Start,), ("Idle",), "Gathering"),
    Transition((Gathered,), ("Gathering",), "Starting"),
    Transition((AllHealthy,), ("Starting",), "Healthy"),
    # asked to end
    Transition((Stop, Kill, Shutdown), ("Idle",), "Stopped"),
    Transition(ASKED, ("Gathering", "Backoff"), "Stopped"),
    Transition(ASKED, ("Starting", "Healthy"), "Draining"),
    # gone wrong
    Transition((MeetingFailed, NotGathered), ("Gathering",), "Failed"),
    Transition((PortFailed,), ("Starting",), "Draining"),
    Transition((MemberLost,), ("Starting", "Healthy"), "Draining"),
    Transition((Fault,), ("Idle", "Gathering", "Backoff"), "Failed"),
    Transition((Fault,), ("Starting", "Healthy"), "Draining"),
    # the end of an attempt
    Transition((Stop, Shutdown, HostLeaves), ("Draining",), None),
    Transition((Kill,), ("Draining",), "Draining"),
    Transition((Fault,), ("Draining",), "Draining", ("may_force",)),
    Transition((Fault,), ("Draining",), "Failed", ("not may_force",)),
    Transition((AllEnded,), ("Draining",), "Stopped", ("stopping",)),
    Transition((AllEnded,), ("Draining",), "Backoff", ("not stopping", "may_retry")),
    Transition((AllEnded,), ("Draining",), "Failed", ("not stopping", "not may_retry")),
    # the next attempt
    Transition((BackoffOver,), ("Backoff",), "Gathering"),
)

IGNORES = (
    Ignore((MemberLost,), ("Draining",)),  # `wind_down` is ending them all, and says so itself
    Ignore((PortFailed,), ("Healthy", "Draining")),  # sent before the first member starts, or not at all
    Ignore((MeetingFailed,), ("Starting", "Healthy", "Draining", "Backoff")),  # sent before the first host comes
)

SPANS = (  # from the outermost to the innermost: they end in the opposite order, each cleanup awaited
    Span("meet", ("Gathering",), ("Starting", "Healthy", "Draining", "Backoff"), (MeetingFailed, HostLeaves),
         ("heartbeat_timeout",), "the meeting of the hosts; at its end they are told how the group ended"),
    Span("gather", ("Gathering",), (), (Gathered, NotGathered), ("gather_timeout",), "wait until no host is missing"),
    Span("hold_port", ("Starting",), ("Healthy", "Draining"), (PortFailed,),
         meaning="the port at which the engine's parts meet: leased, and held until one of them listens"),
    Span("watch_members", ("Starting",), ("Healthy", "Draining"), (MemberLost,),
         meaning="the members; what is left of them at its end is killed"),
    Span("start_members", ("Starting",), (), (AllHealthy,), ("startup_timeout",), "start one after the other"),
    Span("wind_down", ("Draining",), (), (AllEnded,), ("drain_timeout", "terminate_timeout"),
         "drain and end the member that serves, then the others; see each gone"),
    Span("back_off", ("Backoff",), (), (BackoffOver,), ("backoff_initial", "backoff_max")),
)  # fmt: skip

GUARDS = (facts.stopping, facts.may_retry, facts.may_force)

GROUP: Chart[GroupFacts] = Chart(
    name="group",
    states=STATES,
    transitions=TRANSITIONS,
    reduce=facts.reduce,
    guards={guard.__name__: guard for guard in GUARDS},
    spans=SPANS,
    ignores=IGNORES,
    never_ignored=(Stop, Kill, Shutdown, Fault),
)
