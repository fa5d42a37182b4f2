"""Everything that can happen to a server, and what never may."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.chart import Chart, Event, Outcome, Span, State, Transition
from lifecycle.explore import Configuration, Model, Path, explore, paths
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from lifecycle.testing.invariants import INVARIANTS, MOVES
from lifecycle.testing.server_model import HOPELESS, QUIET, SAMPLES, STOLEN, TRANSIENT, UNKNOWN, abstract, server_model


def test_every_interleaving_of_three_letters_keeps_the_invariants() -> None:
    found = explore(server_model(), depth=3, invariants=INVARIANTS, moves=MOVES)
    assert found.counterexample is None, str(found.counterexample)
    assert found.configurations > 10_000


def test_a_deeper_mailbox_reaches_no_other_configuration() -> None:
    reached = [explore(server_model(max_attempts=1), depth=depth) for depth in (1, 2, 3)]
    assert len({found.without_mailbox for found in reached}) == 1
    assert reached[0].configurations < reached[1].configurations < reached[2].configurations


def test_the_samples_hold_every_event() -> None:
    assert {type(event).__name__ for event in SAMPLES} == set(EVENTS)


FOUND = paths(server_model())


def test_every_row_of_the_table_has_a_path() -> None:
    assert FOUND.never == ()
    assert set(FOUND.rows) == set(SERVER.rows)


def test_every_pair_of_rows_has_a_path_or_cannot_be() -> None:
    adjacent = {(one, two) for one in SERVER.rows for two in SERVER.rows if one.target == two.source}
    assert set(FOUND.pairs) | set(FOUND.infeasible) == adjacent
    assert not set(FOUND.pairs) & set(FOUND.infeasible)


def test_only_guards_make_a_pair_impossible() -> None:
    """Each is one of these: a stop that would be forgotten, a failure taken for a stop, a hopeless one tried again,
    a fault that is the first twice, a server that becomes an endpoint."""
    for one, two in FOUND.infeasible:
        assert two.when, f"{one} / {two}"


def test_the_chosen_paths_cover_everything_and_end() -> None:
    assert {row for path in FOUND.all for row in path.rows} == set(SERVER.rows)
    assert set(FOUND.pairs) <= {pair for path in FOUND.all for pair in path.pairs}
    assert set(FOUND.simple) <= set(FOUND.all)
    assert all(path.rows[-1].target in SERVER.final for path in FOUND.all)


def test_simple_paths_enter_no_state_twice_and_differ() -> None:
    for path in FOUND.simple:
        states = [SERVER.initial, *(row.target for row in path.rows)]
        assert len(states) == len(set(states))
    assert len({path.rows for path in FOUND.simple}) == len(FOUND.simple)


@pytest.mark.parametrize("path", FOUND.all, ids=str)
def test_a_path_is_what_the_chart_does_with_facts_that_are_not_abstract(path: Path[Facts]) -> None:
    state, facts, at = SERVER.initial, path.facts, 1000.0
    for edge in path.edges:
        at += edge.after
        step = SERVER.step(state, facts, edge.event, at)
        assert step.row == edge.row
        state, facts = step.after, step.facts


diagnoses = st.sampled_from([None, HOPELESS, TRANSIENT, UNKNOWN, QUIET, STOLEN])


@given(
    st.builds(
        Facts,
        local=st.booleans(), max_attempts=st.just(3), attempt=st.integers(0, 3), failures=st.integers(0, 3),
        port_retries=st.integers(0, 1), quick=st.booleans(), repeated=st.booleans(),
        healthy_since=st.none() | st.just(50.0), pid=st.none() | st.integers(1, 99), stopping=st.booleans(),
        graceful=st.booleans(), killed=st.booleans(), faults=st.integers(0, 3), diagnosis=diagnoses,
    ),
    st.sampled_from(SERVER.states), st.sampled_from(SAMPLES), st.sampled_from([0.0, 600.0]),
)  # fmt: skip
def test_abstract_facts_behave_like_those_that_they_stand_for(
    facts: Facts, state: State, event: Event, after: float
) -> None:
    real = SERVER.step(state.name, facts, event, 50.0 + after)
    stands_for = SERVER.step(state.name, abstract(facts), event, after)
    assert (real.outcome, real.row) == (stands_for.outcome, stands_for.row)
    assert abstract(real.facts) == abstract(stands_for.facts)


@dataclass(frozen=True, slots=True)
class Open(Event):
    pass


@dataclass(frozen=True, slots=True)
class Close(Event):
    pass


@dataclass(frozen=True, slots=True)
class Jammed(Event):
    pass


@dataclass(frozen=True)
class Door:
    jams: int = 0
    opened: int = 0


def worn(door: Door) -> bool:
    return door.jams > 1


def is_gold(door: Door) -> bool:
    return False


def reduce(door: Door, event: Event, at: float) -> Door:
    if isinstance(event, Open):
        return replace(door, opened=door.opened + 1)
    return replace(door, jams=door.jams + 1) if isinstance(event, Jammed) else door


DOOR = Chart(
    "door",
    (State("Shut", ""), State("Ajar", ""), State("Broken", "", final=True)),
    (
        Transition((Open,), ("Shut",), "Ajar"),
        Transition((Close,), ("Ajar",), "Shut"),
        Transition((Jammed,), ("Ajar",), "Shut", ("not worn",)),
        Transition((Jammed,), ("Ajar",), "Broken", ("worn",)),
    ),
    reduce,
    {"worn": worn},
    (Span("creak", ("Ajar",), (), (Jammed,)),),
)


def forget(door: Door) -> Door:
    return Door(min(door.jams, 2))


def door_model(chart: Chart[Door] = DOOR) -> Model[Door]:
    return Model(chart, (Door(),), (Open(), Close(), Jammed()), forget, outside=(Open, Close))


def test_a_row_behind_a_guard_is_reached_by_going_round_until_it_holds() -> None:
    found = paths(door_model())
    assert (found.never, found.infeasible) == ((), ())
    breaks = next(row for row in DOOR.rows if row.target == "Broken")
    assert str(found.rows[breaks]) == "Shut –Open→ Ajar –Jammed→ Shut –Open→ Ajar –Jammed→ Broken"
    assert found.simple == ()  # it jams once, back to Shut, before it breaks


def test_a_row_behind_a_guard_that_never_holds_is_reported() -> None:
    never_worn = replace(DOOR, guards={"worn": is_gold})
    found = paths(door_model(never_worn))
    assert [row.target for row in found.never] == ["Broken"]
    assert {second.target for _, second in found.infeasible} == {"Broken"}


def test_facts_that_are_not_finite_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.paths.MOST_NODES", 50)
    endless = replace(door_model(), abstract=lambda door: door)
    with pytest.raises(ValueError, match="must make the facts finite"):
        paths(endless)


def test_a_broken_invariant_comes_with_the_shortest_way_to_it() -> None:
    def never_jams_twice(now: Configuration[Door]) -> str | None:
        return "jammed twice" if now.facts.jams > 1 else None

    found = explore(door_model(), invariants=(never_jams_twice,)).counterexample
    assert found is not None
    assert found.broken == "jammed twice"
    assert [type(move.event).__name__ for move in found.path] == ["Open", "Jammed", "Open", "Jammed"]


def test_an_outcome_that_waits_while_its_activity_is_left_is_stale() -> None:
    stale = []
    explore(door_model(), depth=2, moves=(lambda move: stale.append(move) if move.outcome is None else None,))
    assert stale
    assert all(move.before == move.after for move in stale)
    assert {move.outcome for move in stale} == {None}


def test_a_chart_that_can_get_stuck_is_found() -> None:
    stuck = replace(DOOR, transitions=DOOR.transitions[:3])
    found = explore(door_model(stuck)).counterexample
    assert found is not None
    assert "no final state can be reached" in found.broken


def test_refused_events_are_moves_too() -> None:
    refused = []
    explore(door_model(), depth=1, moves=(lambda m: refused.append(m) if m.outcome is Outcome.REFUSED else None,))
    assert {(move.before.state, type(move.event)) for move in refused} == {("Shut", Close), ("Ajar", Open)}


def test_an_empty_mailbox_lets_nothing_happen() -> None:
    with pytest.raises(ValueError, match="depth = 0"):
        explore(door_model(), depth=0)
