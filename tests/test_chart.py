"""Charts: what a step does, what begins and ends with it, and what the lint finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from lifecycle.chart import Chart, Event, Ignore, Outcome, Span, State, Transition
from lifecycle.config import ServerConfig
from lifecycle.errors import ChartError
from lifecycle.server_chart import SERVER
from tests.expected_server import differences


@dataclass(frozen=True, slots=True)
class Push(Event):
    pass


@dataclass(frozen=True, slots=True)
class Coin(Event):
    value: int = 1


@dataclass(frozen=True, slots=True)
class Broke(Event):
    pass


@dataclass(frozen=True)
class Till:
    """Facts of a turnstile."""

    coins: int = 0
    last: float = 0.0


def reduce(till: Till, event: Event, at: float) -> Till:
    return Till(till.coins + event.value, at) if isinstance(event, Coin) else till


def paid(till: Till) -> int:
    return till.coins  # a number: truth is enough


def rich(till: Till) -> bool:
    return till.coins > 100


GUARDS: Mapping[str, Any] = {"paid": paid, "rich": rich}
STATES = (State("Locked", "shut"), State("Open", "passable"), State("Gone", "removed", final=True))
TABLE = (
    Transition((Coin,), ("Locked",), "Open", ("paid",)),
    Transition((Coin,), ("Locked",), None, ("not paid",)),
    Transition((Push,), ("Open",), "Locked"),
    Transition((Coin,), ("Open",), "Open"),
    Transition((Broke,), ("Locked", "Open"), "Gone"),
)
LIGHT = Span("light", ("Open",), (), (Broke,))
POWER = Span("power", ("Open",), ("Locked",))


def turnstile(**changes: Any) -> Chart[Till]:
    chart = Chart("turnstile", STATES, TABLE, reduce, GUARDS, (POWER, LIGHT), (Ignore((Push,), ("Locked",)),), (Broke,))
    return replace(chart, **changes)


def test_an_event_is_taken_by_the_row_whose_guards_hold_for_the_facts_after_it() -> None:
    step = turnstile().step("Locked", Till(), Coin(2), at=5.0)
    assert (step.outcome, step.before, step.after, step.facts) == (Outcome.TAKEN, "Locked", "Open", Till(2, 5.0))
    assert str(step.row) == "Locked – Coin [paid] → Open"


def test_an_internal_row_changes_facts_and_leaves_the_state() -> None:
    step = turnstile().step("Locked", Till(), Coin(0), at=5.0)
    assert (step.outcome, step.internal, step.after, step.facts) == (Outcome.TAKEN, True, "Locked", Till(0, 5.0))


def test_a_guard_may_return_any_truth() -> None:
    assert turnstile().step("Locked", Till(7), Coin(1), 0.0).after == "Open"


def test_an_event_without_a_row_is_refused_and_changes_nothing() -> None:
    step = turnstile().step("Open", Till(3), Unknown(), 0.0)
    assert (step.outcome, step.after, step.facts) == (Outcome.REFUSED, "Open", Till(3))


def test_an_event_that_no_guard_lets_through_is_refused_and_its_facts_are_dropped() -> None:
    chart = turnstile(transitions=(TABLE[0], *TABLE[2:]))
    step = chart.step("Locked", Till(), Coin(0), 9.0)
    assert (step.outcome, step.facts) == (Outcome.REFUSED, Till())


def test_an_ignored_event_and_any_event_in_a_final_state_are_ignored() -> None:
    assert turnstile().step("Locked", Till(), Push(), 0.0).outcome is Outcome.IGNORED
    assert turnstile().step("Gone", Till(), Coin(), 0.0).outcome is Outcome.IGNORED


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    pass


def moved(chart: Chart[Till], state: str, event: Event, *running: Span) -> tuple[list[str], list[str]]:
    ends, begins = chart.moves(chart.step(state, Till(), event, 0.0), running)
    return [span.activity for span in ends], [span.activity for span in begins]


def test_entering_a_span_begins_its_activities_outermost_first() -> None:
    assert moved(turnstile(), "Locked", Coin()) == ([], ["power", "light"])


def test_a_span_that_lasts_is_neither_ended_nor_begun() -> None:
    assert moved(turnstile(), "Open", Push(), POWER, LIGHT) == (["light"], [])
    assert moved(turnstile(), "Locked", Coin(), POWER) == ([], ["light"])


def test_leaving_all_spans_ends_their_activities_innermost_first() -> None:
    assert moved(turnstile(), "Open", Broke(), POWER, LIGHT) == (["light", "power"], [])


def test_reentering_a_state_restarts_only_what_belongs_to_it_alone() -> None:
    assert moved(turnstile(), "Open", Coin(), POWER, LIGHT) == (["light"], ["light"])


def test_an_internal_row_and_a_refusal_move_no_span() -> None:
    assert moved(turnstile(), "Locked", Coin(0), POWER) == ([], [])
    assert moved(turnstile(), "Open", Unknown(), POWER, LIGHT) == ([], [])


def test_a_state_in_which_a_span_only_lasts_does_not_begin_it() -> None:
    assert moved(turnstile(), "Open", Push()) == ([], [])


def test_a_span_begins_only_if_its_guards_hold_for_the_facts_then() -> None:
    for literal, value, begun in (("rich", 101, True), ("rich", 1, False), ("not rich", 1, True)):
        chart = turnstile(spans=(replace(LIGHT, when=(literal,)),))
        assert moved(chart, "Locked", Coin(value)) == ([], ["light"] if begun else [])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"transitions": (Transition((Coin,), ("Lokced",), "Open"),)}, "the state 'Lokced', which does not exist"),
        ({"transitions": (Transition((Coin,), ("Locked",), "Opne"),)}, "names the state 'Opne', which does not exist"),
        ({"spans": (Span("light", ("Opne",)),)}, "the span 'light' names the state 'Opne'"),
        ({"spans": (Span("light", ("Open",), ("Gnoe",)),)}, "the span 'light' names the state 'Gnoe'"),
        ({"ignores": (Ignore((Push,), ("Lokced",)),)}, "an ignore names the state 'Lokced'"),
        ({"transitions": (Transition((Coin,), ("Locked",), "Open", ("payed",)),)}, "the guard 'payed' does not exist"),
        ({"transitions": (Transition((Coin,), ("Locked",), "Open", ("not payed",)),)}, "'not payed' does not exist"),
        ({"spans": (replace(LIGHT, when=("payed",)),)}, "the guard 'payed' does not exist"),
        ({"guards": {**GUARDS, "paid": lambda till: True}}, "the guard 'paid' is not a named function"),
        ({"states": (*STATES, State("Open", "again"))}, "a state is listed twice"),
    ],
)
def test_a_chart_with_a_name_that_does_not_exist_cannot_be_made(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ChartError, match=says):
        turnstile(**changes)


def with_rows(*rows: Transition) -> Chart[Till]:
    return turnstile(transitions=(*TABLE, *rows))


def without_row(at: int) -> Chart[Till]:
    return turnstile(transitions=(*TABLE[:at], *TABLE[at + 1 :]))


TRAP = (*STATES, State("Trap", "no way out"))
FINDINGS = [
    (turnstile(states=(*STATES, State("Attic", ""))), "Attic cannot be reached from Locked"),
    (
        turnstile(states=TRAP, transitions=(*TABLE, Transition((Unknown,), ("Open",), "Trap"))),
        "Trap has no way to a final state",
    ),
    (with_rows(Transition((Push,), ("Gone",), "Open")), "Gone is final and has a transition"),
    (without_row(1), "Locked on Coin: every guard can fail (not paid)"),
    (
        with_rows(Transition((Coin,), ("Locked",), "Gone", ("rich",))),
        "Locked on Coin: 2 rows hold at once (paid, rich)",
    ),
    (with_rows(Transition((Push,), ("Open",), "Gone")), "Open – Push → Gone is shadowed by a row above it"),
    (
        with_rows(Transition((Coin,), ("Locked",), "Gone", ("paid", "rich"))),
        "Locked – Coin [paid, rich] → Gone is shadowed by a row above it",
    ),
    (
        turnstile(spans=(Span("power", ("Open",), ("Locked",), (Push, Unknown)),)),
        "Locked does not handle Unknown, which 'power' may report there",
    ),
    (
        turnstile(transitions=(*TABLE[:2], *TABLE[3:]), spans=(Span("watch", ("Locked",)),)),
        "'watch' never begins: no transition enters Locked",
    ),
    (turnstile(never_ignored=(Broke, Push)), "Locked does not take Push, which no state may ignore"),
    (turnstile(ignores=(Ignore((Push, Broke), ("Locked",)),)), "Locked both ignores and takes Broke"),
]


@pytest.mark.parametrize(("chart", "finding"), FINDINGS, ids=[finding for _, finding in FINDINGS])
def test_the_lint_finds(chart: Chart[Till], finding: str) -> None:
    assert finding in chart.lint()


def test_the_lint_finds_nothing_wrong_with_a_sound_chart() -> None:
    assert turnstile().lint() == []


def test_the_servers_chart_is_sound() -> None:
    assert SERVER.lint() == []


def test_the_servers_chart_does_what_is_expected_case_by_case() -> None:
    assert list(differences(SERVER)) == []


def test_the_deadlines_of_the_servers_spans_are_settings() -> None:
    known = {setting.name for setting in fields(ServerConfig)}
    assert {deadline for span in SERVER.spans for deadline in span.deadlines} <= known


def test_every_state_of_the_server_says_what_it_means() -> None:
    assert all(state.meaning for state in SERVER.states)
