"""The server's chart as a finite `lifecycle.paths.Model`: sample events, and which facts behave alike."""

from __future__ import annotations

from dataclasses import replace

from lifecycle.chart import Chart, Event
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.paths import Model
from lifecycle.server_chart import SERVER
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

WINDOW = 600.0
HOPELESS = Diagnosis("missing-model", "it will never work", Verdict.HOPELESS)
TRANSIENT = Diagnosis("hub-unreachable", "it may work next time", Verdict.TRANSIENT, exit_code=1)
UNKNOWN = Diagnosis("exited", "nobody knows why", exit_code=1)
QUIET = Diagnosis("stalled", "it got stuck")
STOLEN = Diagnosis("port-taken", "somebody was faster", Verdict.TRANSIENT)

SAMPLES: tuple[Event, ...] = (
    Start(), Stop(), Stop(1.0, 2.0), Kill(), Shutdown(), Fault("read_log", "RuntimeError: a bug"),
    LockAcquired("key"), LockSkipped("complete"), LockFailed(HOPELESS),
    PortsFailed(HOPELESS), LaunchFailed(HOPELESS), Launched(1, 8000, ""),
    Exited(TRANSIENT), Exited(UNKNOWN), Exited(HOPELESS), Exited(STOLEN),
    BecameReady("model", "/health"), NotReady(HOPELESS), NotReady(STOLEN), StartTimedOut(QUIET),
    StartTimedOut(HOPELESS), Unwell(QUIET), Stalled(QUIET), Sleep(), Wake(), Awoke(), NotAsleep(QUIET), Ended(),
    BackoffOver(), FoundKept(1), FoundKept(1, HOPELESS), Adopted(1, 8000, ""), NotAdopted(QUIET), Idled(60.0),
    Wanted(),
)  # fmt: skip


def abstract(facts: Facts) -> Facts:
    """Facts that behave alike become the same. Of a diagnosis, guards see whether it is hopeless, and `reduce` compares
    its signature with the next one's if its verdict is open; once a stop was asked for, no failure matters."""
    over = facts.stopping
    return replace(
        facts,
        attempt=min(facts.attempt, 1),
        failures=0 if over else facts.failures,
        port_retries=0 if over else facts.port_retries,
        failed_to_start=facts.failed_to_start and not over,
        repeated=facts.repeated and not over,
        quick=False,
        healthy_since=None if facts.healthy_since is None else 0.0,
        pid=None if facts.pid is None else 1,
        port=None,
        model="" if facts.local else facts.model,  # an endpoint that has never been there is given up sooner
        ready_path="",
        drain_by=None,
        kill_by=None,
        faults=min(facts.faults, 2),
        diagnosis=_abstract_diagnosis(facts.diagnosis, over and not facts.faults),
    )


def _abstract_diagnosis(found: Diagnosis | None, irrelevant: bool) -> Diagnosis | None:
    if found is None or irrelevant:
        return None
    if found.verdict is Verdict.HOPELESS:
        return HOPELESS
    if found.exit_code is None:
        return QUIET
    words = found.evidence or (found.tail[-1] if found.tail else "")
    return Diagnosis(found.cause, "", exit_code=found.exit_code, evidence=words)


def server_model(chart: Chart[Facts] = SERVER, *, max_attempts: int = 2) -> Model[Facts]:
    """Local servers, some of which rest or may be adopted, external endpoints and parts that nobody can ask, with
    `max_attempts` failures in a row before they are given up."""
    facts = Facts(max_attempts=max_attempts, attempt_window=WINDOW)
    sleepless = replace(facts, can_sleep=False)
    return Model(
        chart,
        (
            facts, replace(facts, local=False), sleepless, replace(sleepless, probed=False),
            replace(facts, idles=True, sleeps_when_idle=True), replace(sleepless, idles=True, keeps=True),
            replace(sleepless, attaches=True),
        ),
        SAMPLES,
        abstract,
        times=(0.0, WINDOW),
        outside=(Start, Stop, Kill, Shutdown, Sleep, Wake),
        anywhere=(Fault,),
    )
