"""The charts of a group and of its workers as finite models: sample events, and which facts behave alike."""

from __future__ import annotations

from dataclasses import replace

from lifecycle.chart import Chart, Event
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.group.chart import GROUP
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
from lifecycle.group.worker_chart import WORKER
from lifecycle.group.worker_facts import Dismissed, HeadLost, Joined, NotJoined, WorkerFacts
from lifecycle.paths import Model
from lifecycle.server_facts import BackoffOver, Ended, Fault, Kill, Shutdown, Start, Stop

WINDOW = 600.0
HOPELESS = Diagnosis("missing-model", "it will never work", Verdict.HOPELESS)
UNKNOWN = Diagnosis("exited", "nobody knows why", exit_code=1)
QUIET = Diagnosis("host-lost", "a host has gone")
GROUP_SAMPLES: tuple[Event, ...] = (
    Start(), Stop(), Stop(1.0, 2.0), Kill(), Shutdown(), Fault("gather", "RuntimeError: a bug"),
    MeetingFailed(HOPELESS), HostLeaves(1), Gathered(), NotGathered(HOPELESS), PortFailed(HOPELESS), AllHealthy("m"),
    MemberLost("rank-1", HOPELESS), MemberLost("rank-1", UNKNOWN), MemberLost("rank-1", QUIET),
    AllEnded(), AllEnded(("rank-1",)), BackoffOver(),
)  # fmt: skip
WORKER_SAMPLES: tuple[Event, ...] = (
    Start(), Stop(), Stop(1.0, 2.0), Kill(), Shutdown(), Fault("attend", "RuntimeError: a bug"), Joined("head:1"),
    NotJoined(HOPELESS), HeadLost(QUIET), Dismissed(), Dismissed(UNKNOWN), Ended(),
)  # fmt: skip


def abstract_group(facts: GroupFacts) -> GroupFacts:
    """Facts that behave alike become the same; once a stop was asked for, no failure matters."""
    over = facts.stopping
    found = None if over and not facts.faults else facts.diagnosis
    return replace(
        facts,
        attempt=min(facts.attempt, 1),
        failures=0 if over else facts.failures,
        failed_to_start=facts.failed_to_start and not over,
        repeated=facts.repeated and not over,
        healthy_since=None if facts.healthy_since is None else 0.0,
        model="",
        drain_by=None,
        kill_by=None,
        faults=min(facts.faults, 2),
        diagnosis=found if found is None else _plain(found),
    )


def _plain(found: Diagnosis) -> Diagnosis:
    if found.verdict is Verdict.HOPELESS:
        return HOPELESS
    return QUIET if found.exit_code is None else Diagnosis(found.cause, "", exit_code=found.exit_code)


def abstract_worker(facts: WorkerFacts) -> WorkerFacts:
    """The same for a worker's: guards see whether there is a diagnosis."""
    return replace(
        facts,
        attempt=0,
        kill_by=None,
        faults=min(facts.faults, 2),
        diagnosis=None if facts.diagnosis is None else QUIET,
    )


def group_model(chart: Chart[GroupFacts] = GROUP, *, max_attempts: int = 2) -> Model[GroupFacts]:
    """A group that is given up after `max_attempts` failures in a row."""
    return Model(
        chart,
        (GroupFacts(max_attempts=max_attempts, attempt_window=WINDOW),),
        GROUP_SAMPLES,
        abstract_group,
        times=(0.0, WINDOW),
        outside=(Start, Stop, Kill, Shutdown),
        anywhere=(Fault,),
    )


def worker_model(chart: Chart[WorkerFacts] = WORKER) -> Model[WorkerFacts]:
    """A host that is not the head."""
    return Model(
        chart,
        (WorkerFacts(),),
        WORKER_SAMPLES,
        abstract_worker,
        outside=(Start, Stop, Kill, Shutdown),
        anywhere=(Fault,),
    )
