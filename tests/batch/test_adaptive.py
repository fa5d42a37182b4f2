"""Against servers with every shape of throughput curve: the best number in flight is found, held, and found again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lifecycle.adapter import EngineLoad
from lifecycle.batch.adaptive import DWELL_MAX, Adaptive, ladder
from tests.batch.engine_model import Curve, Length, Model, equal, exponential, honest, knee, long_tailed, saturating
from tests.effort import TIMES

SEARCH = 40
"""Windows after which the best limit is held."""
HELD = 40
"""Windows over which it is held, trials of its neighbours included."""

MAXIMUM = st.sampled_from([8, 32, 64, 128, 256])
LENGTHS = st.sampled_from([equal(), exponential(), long_tailed()])
SHAPES = st.sampled_from(["flat", "falls slowly", "falls", "saturates"])
PACES = st.sampled_from([5.0, 50.0, 500.0])
EFFORT = settings(max_examples=25 * TIMES, deadline=None)


def shaped(shape: str, at: int, pace: float) -> Curve:
    if shape == "saturates":
        return saturating(max(1, at // 3), pace)
    return knee(at, {"flat": 0.0, "falls slowly": 0.2, "falls": 0.5}[shape], pace)


@given(MAXIMUM, st.floats(0, 1), SHAPES, PACES, LENGTHS, st.integers(0, 99))
@EFFORT
def test_the_best_throughput_is_found_and_held(
    maximum: int, where: float, shape: str, pace: float, length: Length, seed: int
) -> None:
    at = max(1, round(where * maximum))
    model = Model(Adaptive(maximum), shaped(shape, at, pace), length, seed)
    model.throughput(SEARCH)
    assert model.throughput(HELD) >= 0.9 * model.best(maximum)
    assert model.peak <= maximum


@given(MAXIMUM, st.floats(0, 1), SHAPES, LENGTHS, st.sampled_from([0.05, 0.1]), st.integers(0, 99))
@EFFORT
def test_a_server_whose_speed_wavers_by_a_tenth_costs_little(
    maximum: int, where: float, shape: str, length: Length, jitter: float, seed: int
) -> None:
    at = max(1, round(where * maximum))
    model = Model(Adaptive(maximum), shaped(shape, at, 50.0), length, seed, jitter=jitter)
    model.throughput(SEARCH)
    assert model.throughput(HELD) >= 0.85 * model.best(maximum)


@given(
    st.sampled_from([64, 128, 256]),
    st.floats(0.05, 1),
    st.floats(0.05, 1),
    st.sampled_from([0.25, 0.5, 2.0, 4.0]),
    st.sampled_from([0.0, 0.4]),
    st.integers(0, 99),
)
@example(64, 1.0, 0.5, 2.0, 0.4, 0)
@EFFORT
def test_when_the_speed_changes_the_new_best_is_found(
    maximum: int, before: float, after: float, faster: float, falls: float, seed: int
) -> None:
    """A change that is too small to be seen at once, as in the example, is found when the neighbours are tried next."""
    model = Model(Adaptive(maximum), knee(max(1, round(before * maximum)), falls), exponential(), seed)
    model.throughput(SEARCH)
    model.curve = knee(max(1, round(after * maximum)), falls, 50.0 * faster)
    model.throughput(DWELL_MAX + SEARCH)
    assert model.throughput(HELD) >= 0.9 * model.best(maximum)


@pytest.mark.parametrize("at", [3, 20, 100])
def test_a_flat_curve_is_left_at_its_knee_and_not_at_the_maximum(at: int) -> None:
    """What is in flight beyond it would only wait."""
    model = Model(Adaptive(256), knee(at), equal())
    model.throughput(SEARCH + HELD)
    assert model.adaptive.limit <= 1.3 * at


@given(st.integers(2, 60), st.integers(0, 99))
@EFFORT
def test_it_holds_no_more_than_the_engine_says_it_can_run(room: int, seed: int) -> None:
    model = Model(Adaptive(256), saturating(500.0), exponential(), seed, room=room, tells=honest)
    model.throughput(SEARCH)
    limits = []
    for _ in range(HELD):
        model.throughput(1)
        limits.append(model.adaptive.limit)
    assert sum(limit <= room for limit in limits) >= 0.8 * HELD
    assert max(limits) <= max(room + 1, 1.5 * room), "a look above it from time to time: it may be able to by now"


def test_requests_that_wait_only_for_the_next_step_do_not_hold_it_down() -> None:
    """In an engine whose answers are short a fifth of the requests have always just come."""

    def tells(running: int, waiting: int) -> EngineLoad:
        return EngineLoad(running - running // 5, waiting + running // 5, ())

    model = Model(Adaptive(256), knee(200), exponential(), tells=tells)
    model.throughput(3 * SEARCH)
    assert model.throughput(HELD) >= 0.9 * model.best(256)


def test_where_answers_do_not_say_their_tokens_requests_are_counted() -> None:
    for at, length in itertools.product((5, 40, 120), (equal(), exponential())):
        model = Model(Adaptive(128), knee(at, 0.4), length, says_tokens=False)
        model.throughput(SEARCH)
        assert model.throughput(HELD) >= 0.9 * model.best(128)


def test_an_outage_that_is_told_changes_nothing() -> None:
    model = Model(Adaptive(128), knee(50, 0.4), exponential())
    model.throughput(SEARCH)
    held = model.adaptive.limit
    model.outage(600.0)
    model.adaptive.disturbed(model.now)
    model.throughput(2)
    assert held / 1.5 <= model.adaptive.limit <= held * 1.5


@pytest.mark.parametrize("after", range(5))
def test_after_an_outage_that_is_not_told_it_comes_back(after: int) -> None:
    model = Model(Adaptive(128), knee(50, 0.4), exponential(), seed=after)
    model.throughput(SEARCH + after)
    model.outage(600.0)
    model.throughput(SEARCH)
    assert model.throughput(HELD) >= 0.9 * model.best(128)


def test_a_job_that_does_not_fill_its_limit_learns_nothing_and_changes_nothing() -> None:
    adaptive = Adaptive(64, initial=16)
    for second in range(2000):
        adaptive.finished(float(second), 1.0, 100, 3, True)
    assert (adaptive.limit, adaptive.windows) == (16, 0)


def test_a_limit_at_which_everything_fails_is_left() -> None:
    """A server that times out beyond 8 requests."""
    adaptive, now = Adaptive(64, initial=32), 0.0
    for _ in range(20_000):
        limit = adaptive.limit
        now += 1.0 / limit
        adaptive.finished(now, 1.0, 100, limit, limit <= 8)
    assert adaptive.limit <= 10


@given(
    st.integers(1, 40),
    st.integers(1, 80),
    st.lists(
        st.tuples(
            st.floats(0, 50), st.floats(0, 100), st.integers(0, 10**6), st.integers(1, 60), st.booleans(),
            st.integers(0, 80), st.integers(0, 5),
        ),
        max_size=300,
    ),
)  # fmt: skip
@settings(max_examples=60 * TIMES, deadline=None)
def test_whatever_is_told_the_limit_stays_between_one_and_the_maximum(
    maximum: int, initial: int, told: list[tuple[float, float, int, int, bool, int, int]]
) -> None:
    adaptive, now = Adaptive(maximum, initial=initial), 0.0
    for later, seconds, tokens, in_flight, ok, running, waiting in told:
        now += later
        adaptive.finished(now, seconds, tokens, in_flight, ok)
        assert 1 <= adaptive.limit <= maximum
        adaptive.seen(EngineLoad(running, waiting, ()) if running else None)
        assert 1 <= adaptive.limit <= maximum


@given(st.integers(1, 5000))
def test_the_limits_that_are_tried_rise_from_one_to_the_maximum_by_a_fifth_or_by_one(maximum: int) -> None:
    limits = ladder(maximum)
    assert (limits[0], limits[-1]) == (1, maximum)
    for lower, higher in itertools.pairwise(limits):
        assert lower < higher <= max(lower + 1, 1.25 * lower)


def test_a_maximum_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="maximum = 0 must be at least 1"):
        Adaptive(0)
