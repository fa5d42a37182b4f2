"""An output that dies at every operation of the disk: of the process, or with the power."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batch.simulated_disk import Crash
from tests.batch.store_history import Action, Output, crashed
from tests.effort import TIMES

FORMATS = ("single", "jsonl", "jsonl.gz", "jsonl.zst", "parquet")
KINDS = ("append",) * 4 + ("fail", "skip", "skip failed", "sync", "busy sync", "reopen", "drop", "finish")
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 8)), max_size=14)
some = settings(max_examples=8 * TIMES, deadline=None)


def operations(format: str, actions: list[Action]) -> int:
    output = Output(format)
    output.play(actions)
    return len(output.disk.operations)


@pytest.mark.parametrize("format", FORMATS)
@given(actions=ACTIONS)
@some
def test_killed_at_any_operation_nothing_that_was_appended_is_lost_torn_or_twice(
    format: str, actions: list[Action]
) -> None:
    for at in range(1, operations(format, actions) + 1):
        output = crashed(format, actions, at)
        output.end(None)
        output.recover(power_cut=False)
        output.complete()


@pytest.mark.parametrize("format", FORMATS)
@given(actions=ACTIONS, random=st.randoms(use_true_random=False))
@some
def test_without_power_at_any_operation_nothing_that_was_synced_is_lost_torn_or_twice(
    format: str, actions: list[Action], random: Random
) -> None:
    for at in range(1, operations(format, actions) + 1):
        output = crashed(format, actions, at)
        output.end(random)
        output.recover(power_cut=True)
        output.complete()


@pytest.mark.parametrize("format", FORMATS)
@given(
    actions=ACTIONS, ends=st.lists(st.tuples(st.booleans(), st.integers(0)), min_size=1, max_size=5), seed=st.integers()
)
@settings(max_examples=40 * TIMES, deadline=None)
def test_dying_again_while_it_recovers_loses_nothing_either(
    format: str, actions: list[Action], ends: list[tuple[bool, int]], seed: int
) -> None:
    random = Random(seed)
    count = operations(format, actions)
    output = crashed(format, actions, 1 + ends[0][1] % count)
    output.end(random if ends[0][0] else None)
    power_cut = ends[0][0]
    for cut, at in ends[1:]:
        output.disk.crash_at = len(output.disk.operations) + 1 + at % 12
        try:
            output.recover(power_cut=power_cut)
            output.complete()
        except Crash:
            output.end(random if cut else None)
            power_cut = power_cut or cut
        else:
            return
    output.recover(power_cut=power_cut)
    output.complete()
