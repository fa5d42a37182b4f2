"""The charts, said again in Promela: spin, which shares no code with Stoker, finds nothing wrong, and finds what is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.chart import Chart, Transition
from lifecycle.group.chart import GROUP
from lifecycle.group.facts import AllEnded
from lifecycle.group.worker_chart import WORKER
from lifecycle.paths import Model
from lifecycle.promela import SUBJECTS, Claim, SpinError, missing, promela, subject, verify
from lifecycle.promela.classes import classes
from lifecycle.promela.spin import NO_DEADLOCK
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Ended, Fault, Stop
from lifecycle.testing.group_models import group_model, worker_model
from lifecycle.testing.server_model import server_model

needs_spin = pytest.mark.skipif(bool(missing()), reason=missing() or "all there")


@needs_spin
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_claim_holds_of_every_chart(name: str) -> None:
    about = SUBJECTS[name]()
    found = verify(promela(about), about.claims, depth=2)
    assert [verdict for verdict in found if not verdict.holds] == []
    assert {verdict.claim for verdict in found} >= {NO_DEADLOCK, *(each.name for each in about.claims if each.live)}
    assert min(verdict.states for verdict in found) > 1000


def rows_but(chart: Chart[Any], event: type[Any], source: str, *instead: Transition) -> Chart[Any]:
    """The chart without what it does on an event in a state."""
    rows = [row for row in chart.rows if (row.event, row.source) != (event, source)]
    kept = tuple(Transition((row.event,), (row.source,), row.dest, row.when) for row in rows)
    return replace(chart, transitions=(*kept, *instead))


def forgets_a_stop() -> Model[Any]:
    """An attempt that ends after a stop is followed by another."""
    again = Transition((AllEnded,), ("Draining",), "Backoff", ("may_retry",))
    over = Transition((AllEnded,), ("Draining",), "Failed", ("not may_retry",))
    return group_model(rows_but(GROUP, AllEnded, "Draining", again, over))


def misses_a_row() -> Model[Any]:
    return worker_model(rows_but(WORKER, Stop, "Present"))


def flips_a_guard() -> Model[Any]:
    """A host that was told to stop looks for the head again, and one that was not does not."""
    again = Transition((Ended,), ("Draining",), "Joining", ("over",))
    over = Transition((Ended,), ("Draining",), "Stopped", ("not over",))
    return worker_model(rows_but(WORKER, Ended, "Draining", again, over))


def drains_for_ever() -> Model[Any]:
    again = Transition((Ended,), ("Draining",), "Draining", ("over",))
    joins = Transition((Ended,), ("Draining",), "Joining", ("not over",))
    return worker_model(rows_but(WORKER, Ended, "Draining", again, joins))


def answers_twice() -> Model[Any]:
    """One guard dropped: two rows hold at once."""
    rows = [row for row in WORKER.transitions if row.events != (Ended,) or row.dest != "Failed"]
    return worker_model(replace(WORKER, transitions=(*rows, Transition((Ended,), ("Draining",), "Failed", ("over",)))))


def leaves_a_final_state() -> Model[Any]:
    return worker_model(replace(WORKER, transitions=(*WORKER.transitions, Transition((Stop,), ("Failed",), "Stopped"))))


def span(chart: Chart[Any], activity: str, **changes: Any) -> Chart[Any]:
    return replace(chart, spans=tuple(replace(s, **changes) if s.activity == activity else s for s in chart.spans))


def nobody_winds_down() -> Model[Any]:
    return worker_model(span(WORKER, "wind_down", outcomes=()))


def lets_go_of_the_lock_too_soon() -> Model[Any]:
    """The compile lock is free while the process that builds is being ended."""
    return server_model(span(SERVER, "compile_lock", lasts=("PortBound", "Starting")), max_attempts=1)


def frees_ports_before_the_process_has_gone() -> Model[Any]:
    order = sorted(SERVER.spans, key=lambda each: each.activity == "hold_ports")
    return server_model(replace(SERVER, spans=tuple(order)), max_attempts=1)


def skips_draining() -> Model[Any]:
    return worker_model(rows_but(WORKER, Fault, "Present", Transition((Fault,), ("Present",), "Failed")))


BROKEN: dict[Callable[[], Model[Any]], str] = {
    misses_a_row: NO_DEADLOCK,
    answers_twice: NO_DEADLOCK,
    leaves_a_final_state: "Failed_absorbs",
    skips_draining: "what_runs_is_drained",
    forgets_a_stop: "a_stop_is_never_forgotten",
    flips_a_guard: "a_stop_is_never_forgotten",
    drains_for_ever: "a_stop_ends",
    nobody_winds_down: "a_drain_ends",
    lets_go_of_the_lock_too_soon: "the_lock_outlives_a_process_that_builds",
    frees_ports_before_the_process_has_gone: "ports_outlive_the_process",
}


@needs_spin
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_table_is_found(broken: Callable[[], Model[Any]]) -> None:
    about = subject(broken())
    wanted = [claim for claim in about.claims if claim.name == BROKEN[broken]]
    found = {verdict.claim: verdict for verdict in verify(promela(about), wanted, depth=2)}
    wrong = found[BROKEN[broken]]
    assert not wrong.holds
    assert "- Idle: on_Start" in wrong.story or "events)" in wrong.story


@needs_spin
def test_a_claim_that_makes_no_sense_is_an_error_that_quotes_spin() -> None:
    nonsense = Claim("nonsense", "[] (nowhere == Idle)", "a variable that does not exist")
    about = replace(SUBJECTS["worker"](), claims=(nonsense,))
    with pytest.raises(SpinError, match="nowhere"):
        verify(promela(about), about.claims, depth=2)


def test_without_spin_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(SpinError, match="spin and gcc not found: apt-get install spin gcc"):
        verify("", ())


MODELS = {name: about().model for name, about in SUBJECTS.items()}
CLASSES = {name: classes(model) for name, model in MODELS.items()}


@given(st.sampled_from(sorted(MODELS)), st.data())
def test_classes_of_facts_answer_as_the_facts_do_whatever_happens(name: str, data: st.DataObject) -> None:
    model, found = MODELS[name], CLASSES[name]
    guards: list[Callable[[Any], bool]] = list(model.chart.guards.values())
    state, facts = data.draw(st.sampled_from(model.begin()))
    answers = tuple(bool(guard(facts)) for guard in guards)
    maybe = {each for each in found.first if found.answers[each] == answers}
    assert maybe
    for event in data.draw(st.lists(st.sampled_from(model.samples), max_size=30)):
        at = data.draw(st.sampled_from(model.times))
        step = next(step for _, when, step in model.steps(state, facts, [event]) if when == at)
        if step.row is not None:
            answers = tuple(bool(guard(step.facts)) for guard in guards)
            leads = (found.after[each, type(event)] for each in maybe if (each, type(event)) in found.after)
            maybe = {then for all_then in leads for then in all_then if found.answers[then] == answers}
            assert maybe
        state, facts = step.after, step.facts
