"""What a server's life must be, case by case. Written from the design, independently of the table that it checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lifecycle.chart import Chart, Event, Outcome, Span
from lifecycle.server_facts import EVENTS, Facts, FoundKept
from lifecycle.testing.server_model import HOPELESS, QUIET, SAMPLES, TRANSIENT

BASE = Facts(max_attempts=3)
FACTS = {
    "local": BASE,
    "endpoint": replace(BASE, local=False),
    "sleepless": replace(BASE, can_sleep=False),
    "part": replace(BASE, can_sleep=False, probed=False),
    "asked": replace(BASE, stopping=True),
    "asked-hopeless": replace(BASE, stopping=True, diagnosis=HOPELESS, failures=1),
    "one-failure": replace(BASE, failures=1, diagnosis=TRANSIENT),
    "endpoint-failure": replace(BASE, local=False, failures=2, diagnosis=QUIET),
    "stolen": replace(BASE, quick=True, port_retries=1, diagnosis=TRANSIENT),
    "hopeless": replace(BASE, failures=1, diagnosis=HOPELESS),
    "spent": replace(BASE, failures=3, diagnosis=TRANSIENT),
    "repeated": replace(BASE, failures=2, diagnosis=TRANSIENT, repeated=True),
    "sleeps": replace(BASE, idles=True, sleeps_when_idle=True),
    "ends": replace(BASE, can_sleep=False, idles=True, keeps=True),
    "idle": replace(BASE, can_sleep=False, idles=True, idle=True, healthy_since=0.0, graceful=True),
    "attaches": replace(BASE, attaches=True),
    "faulted": replace(BASE, faults=1, diagnosis=HOPELESS),
}
"""Facts before the event."""
PART = "part"
LOCAL = "local asked asked-hopeless one-failure stolen hopeless spent repeated sleeps attaches faulted"
WIDE_AWAKE = LOCAL.replace(" sleeps", "")
UNFAULTED = LOCAL.replace(" faulted", "")
AGAIN = "sleepless local one-failure stolen sleeps ends attaches"
ENDED = "ends idle"
"""What is ended when nobody needs it, and cannot sleep."""
ENDPOINT = "endpoint endpoint-failure"

TABLE = f"""
Idle       Start                            : Locking   if {LOCAL} sleepless {PART} {ENDED}
Idle       Start                            : Starting  if {ENDPOINT}
Idle       Stop Kill Shutdown               : Stopped
Idle       Fault                            : Failed

Locking    LockAcquired LockSkipped         : PortBound
Locking    LockFailed                       : Draining
Locking    FoundKept                        : by its fit
Locking    Wake                             : ignored

Adopting   Adopted                          : Starting
Adopting   NotAdopted PortsFailed           : Draining
Adopting   Stop Kill Shutdown Fault         : Draining
Adopting   Wake                             : ignored
Locking    Stop Kill Shutdown Fault         : Draining

PortBound  Launched                         : Starting  if {LOCAL} {ENDPOINT} sleepless {ENDED}
PortBound  Launched                         : Healthy   if {PART}
PortBound  PortsFailed LaunchFailed         : Draining
PortBound  Stop Kill Shutdown Fault         : Draining
PortBound  LockAcquired LockSkipped LockFailed Wake : ignored

Starting   BecameReady                      : Healthy
Starting   Exited NotReady StartTimedOut    : Draining
Starting   Stop Kill Shutdown Fault         : Draining
Starting   LockAcquired LockSkipped LockFailed PortsFailed : ignored

Starting   Wake                             : ignored

Healthy    Exited Unwell Stalled            : Draining
Healthy    Stop Kill Shutdown Fault         : Draining
Healthy    Sleep                            : Asleep    if {LOCAL} {ENDPOINT}
Healthy    Sleep                            : stays     if sleepless {PART} {ENDED}
Healthy    Idled                            : Asleep    if sleeps
Healthy    Idled                            : Draining  if {WIDE_AWAKE} {ENDPOINT} sleepless {PART} {ENDED}
Healthy    PortsFailed Wake                 : ignored

Asleep     Awoke                            : Starting
Asleep     Wake                             : stays
Asleep     Exited NotAsleep                 : Draining
Asleep     Stop Kill Shutdown Fault         : Draining
Asleep     Sleep PortsFailed                : ignored

Draining   Stop Shutdown Wake               : stays
Draining   Kill                             : Draining
Draining   Fault                            : Failed    if faulted
Draining   Fault                            : Draining  if {UNFAULTED} {ENDPOINT} sleepless {PART} {ENDED}
Draining   Ended                            : Dormant   if idle
Draining   Ended                            : Stopped   if asked asked-hopeless
Draining   Ended                            : Backoff   if {AGAIN} {ENDPOINT} {PART}
Draining   Ended                            : Failed    if hopeless spent repeated faulted
Draining   Exited PortsFailed LockAcquired LockSkipped LockFailed : ignored

Dormant    Wanted                           : Locking
Dormant    Wake                             : stays
Dormant    Stop Kill Shutdown               : Stopped
Dormant    Fault                            : Failed

Backoff    BackoffOver                      : Locking   if {LOCAL} sleepless {PART} {ENDED}
Backoff    BackoffOver                      : Starting  if {ENDPOINT}
Backoff    Stop Kill Shutdown               : Stopped
Backoff    Fault                            : Failed
"""
"""state, events : what becomes of them, in which case. "stays" changes facts only; what is not listed is refused; a
final state ignores everything."""
STATES = (
    "Idle", "Locking", "Adopting", "PortBound", "Starting", "Healthy", "Asleep", "Draining", "Dormant", "Backoff",
    "Stopped", "Failed",
)  # fmt: skip

REPORTS = {
    "compile_lock": "LockAcquired LockSkipped LockFailed",
    "find_kept": "FoundKept",
    "hold_ports": "PortsFailed",
    "launch": "Launched LaunchFailed",
    "adopt": "Adopted NotAdopted",
    "watch_process": "Exited",
    "read_log": "",
    "entrust": "",
    "await_ready": "BecameReady NotReady",
    "start_deadline": "StartTimedOut",
    "watch_liveness": "Unwell",
    "watch_progress": "Stalled",
    "watch_idle": "Idled",
    "rest": "Awoke NotAsleep",
    "wind_down": "Ended",
    "await_wanted": "Wanted",
    "back_off": "BackoffOver",
}
"""What each activity may report; in this order from the outermost to the innermost."""
NEVER_IGNORED = {"Stop", "Kill", "Shutdown", "Fault"}


@dataclass(frozen=True)
class Life:
    """Events, and who is at work after each: `+` began, `-` ended."""

    facts: Facts
    text: str


STARTED = """
Start         Locking    +compile_lock
LockAcquired  PortBound  +hold_ports +launch
Launched      Starting   -launch +watch_process +read_log +await_ready +start_deadline
"""
ENDPOINT_STARTED = "Start  Starting  +await_ready +start_deadline\n"
READY = "BecameReady  Healthy  -start_deadline -await_ready -compile_lock +watch_liveness +watch_progress\n"
LIVES = (
    Life(BASE, STARTED + READY + """
Stop     Draining  -watch_progress -watch_liveness +wind_down
Stop     Draining
Kill     Draining  -wind_down +wind_down
Fault    Draining  -wind_down +wind_down
Ended    Stopped   -wind_down -read_log -watch_process -hold_ports
"""),
    Life(BASE, STARTED + READY + """
Exited       Draining  -watch_progress -watch_liveness +wind_down
Ended        Backoff   -wind_down -read_log -watch_process -hold_ports +back_off
BackoffOver  Locking   -back_off +compile_lock
LockSkipped  PortBound +hold_ports +launch
"""),
    Life(BASE, STARTED + READY + """
Sleep        Asleep    -watch_progress -watch_liveness +rest
Wake         Asleep
Awoke        Starting  -rest +await_ready +start_deadline
BecameReady  Healthy   -start_deadline -await_ready +watch_liveness +watch_progress
Sleep        Asleep    -watch_progress -watch_liveness +rest
Stop         Draining  -rest +wind_down
Ended        Stopped   -wind_down -read_log -watch_process -hold_ports
"""),
    Life(replace(BASE, idles=True, keeps=True), STARTED + READY.replace("+watch_liveness", "+entrust +watch_liveness")
         .replace("+watch_progress", "+watch_progress +watch_idle") + """
Idled        Draining  -watch_idle -watch_progress -watch_liveness -entrust +wind_down
Wake         Draining
Ended        Dormant   -wind_down -read_log -watch_process -hold_ports +await_wanted
Wanted       Locking   -await_wanted +compile_lock
Stop         Draining  +wind_down
"""),
    Life(replace(BASE, keeps=True), STARTED + READY.replace("+watch_liveness", "+entrust +watch_liveness") + """
Sleep        Asleep    -watch_progress -watch_liveness +rest
Stop         Draining  -rest -entrust +wind_down
"""),
    Life(replace(BASE, attaches=True), """
Start        Locking   +compile_lock +find_kept
FoundKept    Adopting  -find_kept -compile_lock +hold_ports +adopt
Adopted      Starting  -adopt +watch_process +read_log +await_ready +start_deadline
Exited       Draining  -start_deadline -await_ready +wind_down
Ended        Backoff   -wind_down -read_log -watch_process -hold_ports +back_off
BackoffOver  Locking   -back_off +compile_lock
"""),
    Life(BASE, STARTED + """
StartTimedOut  Draining  -start_deadline -await_ready +wind_down
Ended          Backoff   -wind_down -read_log -watch_process -hold_ports -compile_lock +back_off
"""),
    Life(BASE, """
Start        Locking    +compile_lock
LockSkipped  PortBound  +hold_ports +launch
LaunchFailed Draining   -launch +wind_down
Ended        Failed     -wind_down -hold_ports -compile_lock
"""),
    Life(BASE, """
Start        Locking    +compile_lock
Stop         Draining   +wind_down
LockAcquired Draining
Ended        Stopped    -wind_down -compile_lock
"""),
    Life(FACTS["part"], """
Start        Locking    +compile_lock
LockSkipped  PortBound  +hold_ports +launch
Launched     Healthy    -launch -compile_lock +watch_process +read_log
Sleep        Healthy
Exited       Draining   +wind_down
Ended        Backoff    -wind_down -read_log -watch_process -hold_ports +back_off
"""),
    Life(replace(BASE, local=False), ENDPOINT_STARTED + READY.replace("-compile_lock ", "") + """
Unwell       Draining  -watch_progress -watch_liveness +wind_down
Ended        Backoff   -wind_down +back_off
BackoffOver  Starting  -back_off +await_ready +start_deadline
"""),
)  # fmt: skip


def cases() -> Iterator[tuple[str, type[Event], str, str]]:
    """(state, event, name of the facts, what becomes of it) for everything that the table says something about."""
    for line in TABLE.strip().splitlines():
        if line.strip():
            head, _, tail = line.partition(" : ")
            state, *events = head.split()
            result, _, names = tail.strip().partition(" if ")
            for event in events:
                for name in names.split() or FACTS:
                    yield state, EVENTS[event], name, result.strip()


def differences(chart: Chart[Facts]) -> Iterator[str]:
    """Where a chart is not what is written here."""
    yield from _different_steps(chart)
    yield from _different_lives(chart)
    reports = {span.activity: " ".join(event.__name__ for event in span.outcomes) for span in chart.spans}
    if list(reports.items()) != list(REPORTS.items()):
        yield "the activities, their order or what they may report differ"
    if {event.__name__ for event in chart.never_ignored} != NEVER_IGNORED:
        yield "the events that no state may ignore differ"


def _different_steps(chart: Chart[Facts]) -> Iterator[str]:
    wanted = {(state, event, name): result for state, event, name, result in cases()}
    for state in STATES:
        for event in SAMPLES:
            for name, facts in FACTS.items():
                otherwise = "ignored" if state in ("Stopped", "Failed") else "refused"
                expected = wanted.get((state, type(event), name), otherwise)
                step = chart.step(state, facts, event, 0.0)
                if expected == "by its fit":
                    expected = "Adopting" if event == FoundKept(1) else "Draining"
                found = "stays" if step.internal else step.after if step.outcome is Outcome.TAKEN else step.outcome
                if found != expected:
                    yield f"{state} on {type(event).__name__} ({name}): {found}, not {expected}"




def _different_lives(chart: Chart[Facts]) -> Iterator[str]:
    samples = {type(event).__name__: event for event in reversed(SAMPLES)}  # of several, the first
    for life in LIVES:
        state, facts, running = chart.initial, life.facts, tuple[Span, ...]()
        for line in filter(None, life.text.splitlines()):
            event, after, *changes = line.split()
            step = chart.step(state, facts, samples[event], 0.0)
            ends, begins = chart.moves(step, running)
            found = [*(f"-{span.activity}" for span in ends), *(f"+{span.activity}" for span in begins)]
            if (step.after, found) != (after, changes):
                yield f"{state} on {event}: {step.after} {' '.join(found)}, not {after} {' '.join(changes)}"
            state, facts = step.after, step.facts
            running = tuple(s for s in chart.spans if (s in running and s not in ends) or s in begins)
