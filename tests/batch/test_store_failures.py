"""A disk that fills up, and one that fails, at every operation."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.errors import OutputError
from tests.batch.store_history import Action, Output
from tests.batch.test_store_crashes import ACTIONS, FORMATS, operations
from tests.effort import TIMES

some = settings(max_examples=5 * TIMES, deadline=None)


def failing(format: str, actions: Sequence[Action], **faults: object) -> tuple[Output, str]:
    """An output whose disk fails somewhere, closed; and what the error said, if there was one."""
    output = Output(format)
    for name, value in faults.items():
        setattr(output.disk, name, value)
    said = ""
    try:
        output.play(actions)
    except OutputError as error:
        said = str(error)
    said = said or output.said
    if said and output.store is not None:
        output.trying = {}  # append has raised, so nothing of it may be there
        try:
            output.store.close()
        except OutputError as error:
            said = str(error)
    assert not output.disk.locked
    return output, said


@pytest.mark.parametrize("format", FORMATS)
@given(actions=ACTIONS, power_cut=st.booleans(), seed=st.integers())
@some
def test_on_a_full_disk_all_that_was_appended_stays_and_is_on_the_disk_when_it_is_closed(
    format: str, actions: list[Action], power_cut: bool, seed: int
) -> None:
    random = Random(seed)
    for at in range(1, operations(format, actions) + 1):
        output, said = failing(format, actions, full_from=at)
        assert not said or "No space left on device" in said
        assert not said or "run the same command again" in said
        output.end(random if power_cut else None)
        output.recover(power_cut=False)
        output.complete()


@given(actions=ACTIONS)
@some
def test_a_full_disk_leaves_no_torn_line_for_those_who_read_the_file_that_grows(actions: list[Action]) -> None:
    for at in range(1, operations("single", actions) + 1):
        output, _ = failing("single", actions, full_from=at)
        if output.disk.size(Path("/out.jsonl")):
            assert {line["id"] for line in output.lines()} <= set(output.expected)


@pytest.mark.parametrize("format", FORMATS)
@given(actions=ACTIONS, seed=st.integers())
@some
def test_an_operation_that_fails_once_is_told_and_never_retried_into_a_false_success(
    format: str, actions: list[Action], seed: int
) -> None:
    random = Random(seed)
    for at in range(1, operations(format, actions) + 1):
        output, said = failing(format, actions, fail_at=(at, errno.EIO))
        assert "Input/output error" in said
        output.end(None)
        output.recover(power_cut=False)
        output.close()
        output.end(random)
        output.recover(power_cut=True)
        output.complete()
