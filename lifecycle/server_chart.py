"""THE table of a server's life: states, guarded transitions, spans. Nothing else is in this file.

Read it from the bottom: `SERVER` is the whole machine. The events, the facts and how events change them are in
`lifecycle.server_facts`; what the activities do is in `lifecycle.activities`.
"""

from __future__ import annotations

from lifecycle import server_facts as facts
from lifecycle.chart import Chart, Ignore, Span, State, Transition
from lifecycle.server_facts import (
    Adopted,
    Awoke,
    BackoffOver,
    BecameReady,
    Ended,
    Exited,
    Facts,
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

STATES = (
    State("Idle", "configured, nothing held"),
    State("Locking", "finding out whether this start must compile; waiting for the one who does"),
    State("Adopting", "a server that a dead manager left runs and fits; its ports and its keeper are being taken over"),
    State("PortBound", "every port is leased and held; the process is being launched"),
    State("Starting", "the server is coming up; it is not ready yet"),
    State("Healthy", "ready, verified, serving; or a part that nobody can ask, and its process runs"),
    State("Asleep", "its memory is given back, or is being; requests wait until it is awake"),
    State("Draining", "no new requests; those in flight finish; then the process tree is ended and seen to be gone"),
    State("Dormant", "ended because nobody needed it, nothing held; who wants it has it started again"),
    State("Backoff", "waiting before the next attempt"),
    State("Stopped", "asked to stop, everything released", final=True),
    State("Failed", "given up, and says why; everything released", final=True),
)

ASKED = (Stop, Kill, Shutdown)
WORKING = ("Locking", "Adopting", "PortBound", "Starting", "Healthy", "Asleep")

TRANSITIONS = (
    # the life of a server
    Transition((Start,), ("Idle",), "Locking", ("local",)),
    Transition((Start,), ("Idle",), "Starting", ("not local",)),
    Transition((LockAcquired, LockSkipped), ("Locking",), "PortBound"),
    Transition((Launched,), ("PortBound",), "Starting", ("probed",)),
    Transition((Launched,), ("PortBound",), "Healthy", ("not probed",)),
    Transition((BecameReady,), ("Starting",), "Healthy"),
    # one that runs already
    Transition((FoundKept,), ("Locking",), "Adopting", ("fits",)),
    Transition((FoundKept,), ("Locking",), "Draining", ("not fits",)),
    Transition((Adopted,), ("Adopting",), "Starting"),
    # rest
    Transition((Sleep,), ("Healthy",), "Asleep", ("can_sleep",)),
    Transition((Sleep,), ("Healthy",), None, ("not can_sleep",)),
    Transition((Idled,), ("Healthy",), "Asleep", ("sleeps_when_idle",)),
    Transition((Idled,), ("Healthy",), "Draining", ("not sleeps_when_idle",)),
    Transition((Wake,), ("Asleep", "Draining", "Dormant"), None),
    Transition((Awoke,), ("Asleep",), "Starting"),
    Transition((Wanted,), ("Dormant",), "Locking"),
    # asked to end
    Transition(ASKED, ("Idle", "Dormant", "Backoff"), "Stopped"),
    Transition(ASKED, WORKING, "Draining"),
    # gone wrong
    Transition((LockFailed,), ("Locking",), "Draining"),
    Transition((PortsFailed, LaunchFailed), ("PortBound",), "Draining"),
    Transition((PortsFailed, NotAdopted), ("Adopting",), "Draining"),
    Transition((Exited,), ("Starting", "Healthy", "Asleep"), "Draining"),
    Transition((NotReady, StartTimedOut), ("Starting",), "Draining"),
    Transition((Unwell, Stalled), ("Healthy",), "Draining"),
    Transition((NotAsleep,), ("Asleep",), "Draining"),
    Transition((Fault,), WORKING, "Draining"),
    Transition((Fault,), ("Idle", "Dormant", "Backoff"), "Failed"),
    # the end of an attempt
    Transition((Stop, Shutdown), ("Draining",), None),
    Transition((Kill,), ("Draining",), "Draining"),
    Transition((Fault,), ("Draining",), "Draining", ("may_force",)),
    Transition((Fault,), ("Draining",), "Failed", ("not may_force",)),
    Transition((Ended,), ("Draining",), "Stopped", ("stopping",)),
    Transition((Ended,), ("Draining",), "Dormant", ("not stopping", "idle")),
    Transition((Ended,), ("Draining",), "Backoff", ("not stopping", "not idle", "may_retry")),
    Transition((Ended,), ("Draining",), "Failed", ("not stopping", "not idle", "not may_retry")),
    # the next attempt
    Transition((BackoffOver,), ("Backoff",), "Locking", ("local",)),
    Transition((BackoffOver,), ("Backoff",), "Starting", ("not local",)),
)

IGNORES = (
    Ignore((Exited,), ("Draining",)),  # `wind_down` is ending the process, and says so itself
    Ignore((Sleep,), ("Asleep",)),  # as it is
    Ignore((Wake,), ("Locking", "Adopting", "PortBound", "Starting", "Healthy")),  # as it is, or soon will be
    Ignore((PortsFailed,), ("Starting", "Healthy", "Asleep", "Draining")),  # sent before the launch, or not at all
    Ignore((LockAcquired, LockSkipped, LockFailed), ("PortBound", "Starting", "Draining")),  # the same
)

SPANS = (  # from the outermost to the innermost: they end in the opposite order, each cleanup awaited
    Span("compile_lock", ("Locking",), ("PortBound", "Starting", "Draining"), (LockAcquired, LockSkipped, LockFailed),
         meaning="the right to build the compile cache; at Healthy the cache is marked complete"),
    Span("find_kept", ("Locking",), (), (FoundKept,), meaning="whether such a server runs already, and fits",
         when=("attaches",)),
    Span("hold_ports", ("PortBound", "Adopting"), ("Starting", "Healthy", "Asleep", "Draining"), (PortsFailed,),
         meaning="ports leased against other instances, held against everybody until the server listens"),
    Span("launch", ("PortBound",), (), (Launched, LaunchFailed), meaning="command line, keeper, process"),
    Span("adopt", ("Adopting",), (), (Adopted, NotAdopted), meaning="the keeper of a dead manager, and its process"),
    Span("watch_process", ("Starting", "Healthy"), ("Asleep", "Draining"), (Exited,),
         meaning="the process tree, until it is gone", when=("local",)),
    Span("read_log", ("Starting", "Healthy"), ("Asleep", "Draining"), (), meaning="phases of a start, from the log",
         when=("local",)),
    Span("entrust", ("Healthy",), ("Asleep",), (), ("keep_for",), "let the keeper keep it should the manager die",
         when=("keeps",)),
    Span("await_ready", ("Starting",), (), (BecameReady, NotReady), ("probe_interval",),
         "readiness probe, identity, one token"),
    Span("start_deadline", ("Starting",), (), (StartTimedOut,), ("startup_timeout", "no_progress_timeout")),
    Span("watch_liveness", ("Healthy",), (), (Unwell,), ("liveness_interval", "liveness_timeout"), when=("probed",)),
    Span("watch_progress", ("Healthy",), (), (Stalled,), ("stall_timeout",), when=("probed",)),
    Span("watch_idle", ("Healthy",), (), (Idled,), ("idle_timeout",), "whether anybody asks anything of it",
         when=("idles",)),
    Span("rest", ("Asleep",), (), (Awoke, NotAsleep), ("drain_timeout", "warmup_timeout"),
         "drain, put the engine to sleep, wake it when it is wanted"),
    Span("wind_down", ("Draining",), (), (Ended,), ("drain_timeout", "terminate_timeout"),
         "drain, then end the process tree"),
    Span("await_wanted", ("Dormant",), (), (Wanted,)),
    Span("back_off", ("Backoff",), (), (BackoffOver,), ("backoff_initial", "backoff_max")),
)  # fmt: skip

GUARDS = (
    facts.local, facts.can_sleep, facts.probed, facts.attaches, facts.fits, facts.keeps, facts.idles,
    facts.sleeps_when_idle, facts.idle, facts.stopping, facts.may_retry, facts.may_force,
)  # fmt: skip

SERVER: Chart[Facts] = Chart(
    name="server",
    states=STATES,
    transitions=TRANSITIONS,
    reduce=facts.reduce,
    guards={guard.__name__: guard for guard in GUARDS},
    spans=SPANS,
    ignores=IGNORES,
    never_ignored=(Stop, Kill, Shutdown, Fault),
)
