"""The fleet's chart: sound, and nothing that can happen breaks what must hold of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.chart import Event, Outcome
from lifecycle.diagnosis import Diagnosis
from lifecycle.explore import Configuration, Move, explore, paths
from lifecycle.fleet.chart import FLEET, NEWS
from lifecycle.fleet.facts import EVENTS, FleetFacts, ReplicaAway, ReplicaHealthy, ReplicaLost, reduce
from lifecycle.server_facts import Fault, Kill, Shutdown, Stop
from lifecycle.testing.fleet_models import FLEET_SAMPLES, fleet_model

MODEL = fleet_model()


def test_the_chart_is_sound() -> None:
    assert FLEET.lint() == []


def test_the_samples_hold_every_event() -> None:
    assert {type(event).__name__ for event in FLEET_SAMPLES} == set(EVENTS)
    assert set(FLEET.events) == set(EVENTS.values())


def replicas_live_only_while_the_fleet_works(now: Configuration[FleetFacts]) -> str | None:
    working = now.state in ("Starting", "Healthy", "Draining")
    return None if ("keep" in now.activities) == working else f"{now.state} with {sorted(now.activities)}"


def healthy_means_enough(now: Configuration[FleetFacts]) -> str | None:
    enough = len(now.facts.healthy) >= now.facts.min_healthy
    if now.state in ("Healthy", "Starting") and enough != (now.state == "Healthy"):
        return f"{now.state} with {len(now.facts.healthy)} of {now.facts.min_healthy}"
    return None


def who_is_given_up_says_why(now: Configuration[FleetFacts]) -> str | None:
    return "Failed without a diagnosis" if now.state == "Failed" and now.facts.diagnosis is None else None


def who_was_asked_to_stop_never_starts_again(move: Move[FleetFacts]) -> str | None:
    back = move.before.facts.stopping and move.after.state in ("Starting", "Healthy")
    return f"{move} although it is stopping" if back else None


def the_end_comes_after_the_replicas(move: Move[FleetFacts]) -> str | None:
    if move.before.state == "Draining" and move.after.state == "Stopped" and move.ended[:1] != ("wind_down",):
        return f"{move} ended {move.ended}"
    return None


def a_stop_is_taken(move: Move[FleetFacts]) -> str | None:
    asked = isinstance(move.event, Stop | Kill | Shutdown | Fault)
    return f"{move} was not taken" if asked and move.outcome is not Outcome.TAKEN and not over(move) else None


def over(move: Move[FleetFacts]) -> bool:
    return move.before.state in FLEET.final


def test_nothing_that_can_happen_breaks_a_rule() -> None:
    found = explore(
        MODEL,
        depth=3,
        invariants=(replicas_live_only_while_the_fleet_works, healthy_means_enough, who_is_given_up_says_why),
        moves=(who_was_asked_to_stop_never_starts_again, the_end_comes_after_the_replicas, a_stop_is_taken),
    )
    assert found.counterexample is None, str(found.counterexample)


def test_every_row_of_the_table_is_on_a_path_to_the_end() -> None:
    found = paths(MODEL)
    assert {row for path in found.all for row in path.rows} == set(FLEET.rows)


@given(st.lists(st.tuples(st.sampled_from(NEWS), st.sampled_from(["a", "b", "c", "d"])), max_size=20))
def test_a_replica_is_never_both_healthy_and_lost_and_only_the_last_news_of_it_counts(
    news: list[tuple[type[ReplicaHealthy | ReplicaAway | ReplicaLost], str]],
) -> None:
    facts = FleetFacts(4)
    for kind, name in news:
        facts = reduce(facts, kind(name), 0.0)
    last = {name: kind for kind, name in news}
    assert facts.healthy == tuple(sorted(name for name, kind in last.items() if kind is ReplicaHealthy))
    assert facts.lost == tuple(sorted(name for name, kind in last.items() if kind is ReplicaLost))


def test_the_diagnosis_is_that_of_the_replica_with_which_too_few_were_left() -> None:
    facts = FleetFacts(3, min_healthy=2)
    for name, why in (("a", "first"), ("b", "second"), ("c", "third")):
        facts = reduce(facts, ReplicaLost(name, Diagnosis("exited", why)), 0.0)
    assert facts.diagnosis is not None
    assert facts.diagnosis.summary == "b: second; 1 of 3 replicas left, min_healthy = 2"


@pytest.mark.parametrize("end", [Stop(), Kill()])
def test_replicas_that_end_because_they_are_told_to_are_no_reason(end: Event) -> None:
    facts = reduce(reduce(FleetFacts(1), end, 0.0), ReplicaLost("a", Diagnosis("exited", "killed")), 0.0)
    assert facts.diagnosis is None
