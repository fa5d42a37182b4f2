"""What is known about a server's life, the events that change it, and how. Pure, so a journal replays to the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.failures import counted, deadline, failures_after, is_hopeless, is_repeated, of_fault, was_well

PORT_RETRIES = 1
"""Times that a stolen port costs a quick new start instead of an attempt."""


@dataclass(frozen=True, slots=True)
class Start(Event):
    """Begin the life of a server."""


@dataclass(frozen=True, slots=True)
class Stop(Event):
    """Drain, then end: requests in flight have `drain` seconds from now, SIGKILL falls after `kill`; None: as before,
    or as configured. Said again while it ends, the limits that were given last hold."""

    drain: float | None = None
    kill: float | None = None


@dataclass(frozen=True, slots=True)
class Kill(Event):
    """End now: cut a drain short. A second Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Shutdown(Event):
    """The code that runs the server was cancelled from outside. Drains like `Stop`."""


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """An activity raised: an adapter's own bug, or ours."""

    activity: str
    error: str


@dataclass(frozen=True, slots=True)
class LockAcquired(Event):
    """This start is the one that builds the compile cache."""

    key: str


@dataclass(frozen=True, slots=True)
class LockSkipped(Event):
    """This start builds no compile cache: there is none to build, or it is complete."""

    reason: str


@dataclass(frozen=True, slots=True)
class LockFailed(Event):
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class FoundKept(Event):
    """A server that a dead manager left runs still, under its keeper; why it does not fit what is configured, if so."""

    pid: int
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class Adopted(Event):
    """Its keeper takes orders from us now: main process id, HTTP port, path of its log."""

    pid: int
    port: int
    log: str


@dataclass(frozen=True, slots=True)
class NotAdopted(Event):
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class PortsFailed(Event):
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class LaunchFailed(Event):
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Launched(Event):
    """The process lives: main process id, HTTP port, path of the attempt's log."""

    pid: int
    port: int
    log: str


@dataclass(frozen=True, slots=True)
class Exited(Event):
    """The main process has ended, and nobody had asked it to."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class BecameReady(Event):
    """Ready, the listener is ours, the model is ours, one token came back."""

    model: str
    path: str


@dataclass(frozen=True, slots=True)
class NotReady(Event):
    """It answers, and will never be ready: wrong key, wrong model, somebody else's port."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class StartTimedOut(Event):
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Unwell(Event):
    """Several liveness probes in a row have failed."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """Requests are in flight, none gets on, and not one token can be had."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Sleep(Event):
    """Let the requests in flight finish, then give the engine's memory back."""


@dataclass(frozen=True, slots=True)
class Wake(Event):
    """It is wanted again."""


@dataclass(frozen=True, slots=True)
class Awoke(Event):
    """The engine says that it is awake; whether it can serve is another question."""


@dataclass(frozen=True, slots=True)
class NotAsleep(Event):
    """The engine does not fall asleep, or does not wake up."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Idled(Event):
    """Nobody has asked anything of it for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wanted(Event):
    """A server that was ended because nobody needed it is needed."""


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """Nothing of the process tree is left."""


@dataclass(frozen=True, slots=True)
class BackoffOver(Event):
    pass


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        Start, Stop, Kill, Shutdown, Fault, LockAcquired, LockSkipped, LockFailed, PortsFailed, LaunchFailed, Launched,
        Exited, BecameReady, NotReady, StartTimedOut, Unwell, Stalled, Sleep, Wake, Awoke, NotAsleep, Ended,
        BackoffOver, FoundKept, Adopted, NotAdopted, Idled, Wanted,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The guards' whole world."""

    local: bool = True
    """Stoker starts a process; False for an external endpoint."""
    can_sleep: bool = True
    """The engine can give its memory back and keep its process."""
    probed: bool = True
    """It can be asked whether it is ready; False for a part of a larger server that nobody can ask."""
    attaches: bool = False
    """A server that a dead manager left is looked for before the first start."""
    keeps: bool = False
    """While it is Healthy its keeper may keep it, for a time, should its manager die."""
    idles: bool = False
    """It is put to rest when nobody has asked anything of it for a time."""
    sleeps_when_idle: bool = False
    """It is put to sleep then; otherwise its process is ended."""
    max_attempts: int = 5
    attempt_window: float = 600.0
    """Seconds of health that wipe out earlier failures."""
    attempt: int = 0
    """Starts begun so far; 0 before the first."""
    failures: int = 0
    """Failed attempts in a row."""
    port_retries: int = 0
    """Quick starts already spent on stolen ports since the server was last Healthy."""
    quick: bool = False
    """The next attempt needs no wait."""
    failed_to_start: bool = False
    """The last failure was that of a start, and not of what had been ready."""
    repeated: bool = False
    """The last two starts failed in the very same way."""
    healthy_since: float | None = None
    pid: int | None = None
    port: int | None = None
    fits: bool = False
    """The server that was found running is the one that is configured."""
    idle: bool = False
    """It sleeps, is being ended, or has been, because nobody needs it."""
    wanted: bool = False
    """Somebody wants a server that rests to serve."""
    model: str = ""
    """The name that the server reports for its model."""
    ready_path: str = ""
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

    @property
    def has_served(self) -> bool:
        """In this attempt it was seen to be ready. Of what cannot be asked nobody has seen that."""
        return self.probed and self.healthy_since is not None


def local(facts: Facts) -> bool:
    return facts.local


def can_sleep(facts: Facts) -> bool:
    return facts.can_sleep


def probed(facts: Facts) -> bool:
    return facts.probed


def attaches(facts: Facts) -> bool:
    return facts.attaches


def fits(facts: Facts) -> bool:
    return facts.fits


def keeps(facts: Facts) -> bool:
    return facts.keeps


def idles(facts: Facts) -> bool:
    return facts.idles


def sleeps_when_idle(facts: Facts) -> bool:
    return facts.sleeps_when_idle


def idle(facts: Facts) -> bool:
    return facts.idle


def stopping(facts: Facts) -> bool:
    return facts.stopping


def may_retry(facts: Facts) -> bool:
    """The last failure is worth another attempt, and there is one left."""
    return not is_hopeless(facts.diagnosis) and not facts.repeated and facts.failures < facts.max_attempts


def may_force(facts: Facts) -> bool:
    """The first fault while draining: end the tree without asking the adapter. A second one gives up."""
    return facts.faults <= 1


def reduce(facts: Facts, event: Event, at: float) -> Facts:
    """The facts after `event` at Unix time `at`."""
    match event:
        case Start():
            return _next(facts)
        case BackoffOver() | Wanted():
            return replace(_next(facts), idle=False, wanted=False)
        case FoundKept(diagnosis=None):
            return replace(facts, fits=True)
        case Adopted(pid=pid, port=port):
            return replace(facts, pid=pid, port=port, attaches=False, fits=False)
        case LockAcquired() | LockSkipped():  # there is none to attach to
            return replace(facts, attaches=False)
        case Launched(pid=pid, port=port):
            return replace(facts, pid=pid, port=port, healthy_since=None if facts.probed else at)
        case BecameReady(model=model, path=path):
            return replace(facts, healthy_since=at, model=model, ready_path=path, port_retries=0)
        case Sleep():
            return replace(facts, wanted=False, idle=False)
        case Idled():
            failures = 0 if was_well(facts.healthy_since, at, facts.attempt_window) else facts.failures
            return replace(facts, wanted=False, idle=True, graceful=not facts.sleeps_when_idle, failures=failures)
        case Wake():  # a drain that was asked for, or for a failure, is not for those who want it
            return replace(facts, wanted=facts.idle or (facts.healthy_since is not None and not facts.stopping))
        case Awoke():
            return replace(facts, wanted=False, idle=False, healthy_since=None)
        case Ended() if facts.idle:
            return replace(facts, healthy_since=None, graceful=False)
        case Stop(drain=drain, kill=kill):
            drain_by, kill_by = deadline(facts.drain_by, drain, at), deadline(facts.kill_by, kill, at)
            return replace(_stopping(facts), drain_by=drain_by, kill_by=kill_by)
        case Shutdown():
            return _stopping(facts)
        case Kill():
            return replace(_moot(facts), stopping=True, graceful=False, killed=True)
        case Fault(activity=activity, error=error):
            found = of_fault(activity, error, facts.diagnosis)
            return replace(_moot(facts), faults=facts.faults + 1, graceful=False, killed=True, diagnosis=found)
        case (
            LockFailed(diagnosis=found) | PortsFailed(diagnosis=found) | LaunchFailed(diagnosis=found)
            | Exited(diagnosis=found) | NotReady(diagnosis=found) | StartTimedOut(diagnosis=found)
            | Unwell(diagnosis=found) | Stalled(diagnosis=found) | NotAsleep(diagnosis=found)
            | NotAdopted(diagnosis=found) | FoundKept(diagnosis=Diagnosis() as found)
        ):  # fmt: skip
            return _failed(facts, found, at)
        case _:
            return facts


def _next(facts: Facts) -> Facts:
    return replace(facts, attempt=facts.attempt + 1, pid=None, port=None, quick=False)


def _stopping(facts: Facts) -> Facts:
    graceful = facts.healthy_since is not None and not facts.killed
    return replace(_moot(facts), stopping=True, graceful=graceful)


def _moot(facts: Facts) -> Facts:
    """What there was to attach to, and whether anybody needs the server, matters no more."""
    return replace(facts, attaches=False, fits=False, idle=False, wanted=False)


def _failed(facts: Facts, found: Diagnosis, at: float) -> Facts:
    """Count a failure against the budget, unless a stolen port or a long healthy period makes it free."""
    facts = _moot(facts)
    stolen = found.cause == "port-taken" and found.verdict is not Verdict.HOPELESS
    if stolen and facts.port_retries < PORT_RETRIES:
        return replace(
            facts, diagnosis=found, quick=True, port_retries=facts.port_retries + 1, healthy_since=None, graceful=False,
            failed_to_start=not facts.has_served,
        )  # fmt: skip
    failures = failures_after(facts.failures, facts.healthy_since, at, facts.attempt_window)
    repeated = not facts.has_served and facts.failed_to_start and is_repeated(facts.diagnosis, found)
    return replace(
        facts,
        diagnosis=counted(found, failures, facts.max_attempts, repeated=repeated),
        failures=failures,
        failed_to_start=not facts.has_served,
        repeated=repeated,
        healthy_since=None,
        graceful=False,
        quick=False,
    )
