"""The charts of a group and of its workers: sound, and nothing that can happen breaks what must hold of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.chart import Event, Outcome, State
from lifecycle.explore import Configuration, Move, Path, explore, paths
from lifecycle.group import facts as group_facts
from lifecycle.group import worker_facts
from lifecycle.group.chart import GROUP
from lifecycle.group.facts import AllHealthy, Gathered, GroupFacts, MemberLost
from lifecycle.group.worker_chart import WORKER
from lifecycle.group.worker_facts import Joined, WorkerFacts
from lifecycle.server_facts import Fault, Kill, Shutdown, Stop
from lifecycle.testing.group_models import (
    GROUP_SAMPLES,
    HOPELESS,
    QUIET,
    UNKNOWN,
    WINDOW,
    WORKER_SAMPLES,
    abstract_group,
    abstract_worker,
    group_model,
    worker_model,
)

CHARTS = [GROUP, WORKER]
MUST_TAKE = (Stop, Kill, Shutdown, Fault)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_the_chart_is_sound(chart: Any) -> None:
    assert chart.lint() == []


def test_the_samples_hold_every_event() -> None:
    assert {type(event).__name__ for event in GROUP_SAMPLES} == set(group_facts.EVENTS)
    assert {type(event).__name__ for event in WORKER_SAMPLES} == set(worker_facts.EVENTS)


def no_member_runs_at_rest(now: Configuration[GroupFacts]) -> str | None:
    running = now.activities & {"watch_members", "hold_port", "start_members"}
    at_rest = now.state in ("Idle", "Gathering", "Backoff", "Stopped", "Failed")
    return f"{now.state}: {sorted(running)} are at work" if at_rest and running else None


def members_are_watched_wherever_they_run(now: Configuration[GroupFacts]) -> str | None:
    running = now.state in ("Starting", "Healthy", "Draining")
    missing = {"watch_members", "hold_port", "meet"} - now.activities
    return f"{now.state} does without {sorted(missing)}" if running and missing else None


def hosts_are_met_from_the_first_gathering_to_the_end(now: Configuration[GroupFacts]) -> str | None:
    met = "meet" in now.activities
    wanted = now.state not in ("Idle", "Stopped", "Failed")
    return None if met is wanted else f"{now.state}: the meeting is {'open' if met else 'closed'}"


def who_was_asked_to_stop_ends(now: Configuration[GroupFacts]) -> str | None:
    if now.facts.stopping and now.state not in ("Draining", "Stopped", "Failed"):
        return f"asked to stop, and {now.state}"
    return "stopped, and nobody asked" if now.state == "Stopped" and not now.facts.stopping else None


def only_what_was_well_drains_gracefully(now: Configuration[GroupFacts]) -> str | None:
    facts = now.facts
    wrong = facts.graceful and (facts.healthy_since is None or facts.killed or not facts.stopping)
    return "a graceful drain of a group that was not healthy, or was killed" if wrong else None


def who_gives_up_says_why(now: Configuration[GroupFacts]) -> str | None:
    return "Failed without a diagnosis" if now.state == "Failed" and now.facts.diagnosis is None else None


def the_budget_is_kept(now: Configuration[GroupFacts]) -> str | None:
    facts = now.facts
    if facts.failures > facts.max_attempts:
        return f"{facts.failures} failures of {facts.max_attempts}"
    spent = facts.failures >= facts.max_attempts or facts.repeated or facts.diagnosis == HOPELESS
    return "another attempt, and there is none left" if now.state == "Backoff" and spent else None


GROUP_RULES = (
    no_member_runs_at_rest,
    members_are_watched_wherever_they_run,
    hosts_are_met_from_the_first_gathering_to_the_end,
    who_was_asked_to_stop_ends,
    only_what_was_well_drains_gracefully,
    who_gives_up_says_why,
    the_budget_is_kept,
)


def members_end_with_the_host(now: Configuration[WorkerFacts]) -> str | None:
    hosts = "host_members" in now.activities
    return None if hosts is (now.state in ("Present", "Draining")) else f"{now.state}: members are hosted: {hosts}"


def no_link_while_members_end(now: Configuration[WorkerFacts]) -> str | None:
    """The head sees at once that this host does not do as it says any more."""
    linked = "attend" in now.activities
    return None if linked is (now.state in ("Joining", "Present")) else f"{now.state}: the link is there: {linked}"


def a_worker_that_failed_says_why(now: Configuration[WorkerFacts]) -> str | None:
    return "Failed without a diagnosis" if now.state == "Failed" and now.facts.diagnosis is None else None


def a_worker_told_to_stop_looks_for_no_head(now: Configuration[WorkerFacts]) -> str | None:
    return "asked to stop, and Joining" if now.facts.stopping and now.state == "Joining" else None


WORKER_RULES = (
    members_end_with_the_host,
    no_link_while_members_end,
    a_worker_that_failed_says_why,
    a_worker_told_to_stop_looks_for_no_head,
)


def no_outcome_is_refused(went: Move[Any]) -> str | None:
    refused = went.sender and went.outcome is Outcome.REFUSED
    return f"{went.before.state} refuses {type(went.event).__name__} of {went.sender}" if refused else None


def stop_kill_shutdown_and_fault_are_taken(went: Move[Any]) -> str | None:
    if isinstance(went.event, MUST_TAKE) and went.outcome is not Outcome.TAKEN:
        return f"{went.before.state} does not take {type(went.event).__name__}"
    return None


def nothing_skips_draining(went: Move[Any]) -> str | None:
    running = went.before.state in ("Starting", "Healthy", "Present")
    return f"{went.before.state} → {went.after.state}" if running and went.after.state in (
        "Backoff", "Gathering", "Joining", "Stopped", "Failed"
    ) else None  # fmt: skip


def only_its_event_leads_to(went: Move[Any]) -> str | None:
    wanted: dict[str, type[Event]] = {"Starting": Gathered, "Healthy": AllHealthy, "Present": Joined}
    kind = wanted.get(went.after.state)
    if went.before.state == went.after.state or kind is None or isinstance(went.event, kind):
        return None
    return f"{type(went.event).__name__} leads to {went.after.state}"


MOVES = (
    no_outcome_is_refused,
    stop_kill_shutdown_and_fault_are_taken,
    nothing_skips_draining,
    only_its_event_leads_to,
)


def test_every_interleaving_of_three_letters_keeps_the_rules_of_a_group() -> None:
    found = explore(group_model(), depth=3, invariants=GROUP_RULES, moves=MOVES)
    assert found.counterexample is None, str(found.counterexample)
    assert found.configurations > 1000


def test_every_interleaving_of_three_letters_keeps_the_rules_of_a_worker() -> None:
    found = explore(worker_model(), depth=3, invariants=WORKER_RULES, moves=MOVES)
    assert found.counterexample is None, str(found.counterexample)


@pytest.mark.parametrize("model", [group_model, worker_model], ids=["group", "worker"])
def test_every_row_of_the_table_has_a_path_and_every_path_ends(model: Callable[[], Any]) -> None:
    found = paths(model())
    assert found.never == ()
    assert all(path.rows[-1].target in ("Stopped", "Failed") for path in found.all)


@pytest.mark.parametrize("path", paths(group_model()).all, ids=str)
def test_a_path_is_what_the_chart_does_with_facts_that_are_not_abstract(path: Path[GroupFacts]) -> None:
    state, facts, at = GROUP.initial, path.facts, 1000.0
    for edge in path.edges:
        at += edge.after
        step = GROUP.step(state, facts, edge.event, at)
        assert step.row == edge.row
        state, facts = step.after, step.facts


diagnoses = st.sampled_from([None, HOPELESS, UNKNOWN, QUIET])


@given(
    st.builds(
        GroupFacts, max_attempts=st.just(3), attempt=st.integers(0, 3), failures=st.integers(0, 3),
        repeated=st.booleans(), healthy_since=st.none() | st.just(50.0), stopping=st.booleans(),
        graceful=st.booleans(), killed=st.booleans(), faults=st.integers(0, 3), diagnosis=diagnoses,
    ),
    st.sampled_from(GROUP.states), st.sampled_from(GROUP_SAMPLES), st.sampled_from([0.0, WINDOW]),
)  # fmt: skip
def test_abstract_facts_of_a_group_behave_like_those_that_they_stand_for(
    facts: GroupFacts, state: State, event: Event, after: float
) -> None:
    real = GROUP.step(state.name, facts, event, 50.0 + after)
    stands_for = GROUP.step(state.name, abstract_group(facts), event, after)
    assert (real.outcome, real.row) == (stands_for.outcome, stands_for.row)
    assert abstract_group(real.facts) == abstract_group(stands_for.facts)


@given(
    st.builds(
        WorkerFacts, attempt=st.integers(0, 3), stopping=st.booleans(), killed=st.booleans(), dismissed=st.booleans(),
        faults=st.integers(0, 3), diagnosis=diagnoses,
    ),
    st.sampled_from(WORKER.states), st.sampled_from(WORKER_SAMPLES),
)  # fmt: skip
def test_abstract_facts_of_a_worker_behave_like_those_that_they_stand_for(
    facts: WorkerFacts, state: State, event: Event
) -> None:
    real = WORKER.step(state.name, facts, event, 1.0)
    stands_for = WORKER.step(state.name, abstract_worker(facts), event, 0.0)
    assert (real.outcome, real.row) == (stands_for.outcome, stands_for.row)
    assert abstract_worker(real.facts) == abstract_worker(stands_for.facts)


def test_a_group_that_was_well_for_long_has_its_whole_budget_again() -> None:
    facts = GroupFacts(max_attempts=3, attempt_window=100.0, failures=2, healthy_since=0.0)
    assert group_facts.reduce(facts, MemberLost("rank-1", QUIET), 99.0).failures == 3
    assert group_facts.reduce(facts, MemberLost("rank-1", QUIET), 101.0).failures == 1
