"""Whatever is broken in the server's table, a check notices."""

from __future__ import annotations

import pytest

from lifecycle.server_chart import SERVER
from tests.mutation import Mutant, mutants, noticed

ALL = tuple(mutants(SERVER))


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.what)
def test_a_broken_table_is_noticed(mutant: Mutant) -> None:
    assert noticed(mutant), f"nothing notices: {mutant.what}"


def test_an_unbroken_table_raises_no_alarm() -> None:
    assert noticed(Mutant("none", lambda: SERVER), every=True) == {}


def test_every_row_every_guard_every_ignore_and_every_span_has_a_mutant() -> None:
    what = [mutant.what for mutant in ALL]
    for row in SERVER.rows:
        assert f"row: {row}: removed" in what
        assert {f"guard: {row}: {literal!r} negated" for literal in row.when} <= set(what)
    for ignore in SERVER.ignores:
        for event in ignore.events:
            assert {f"ignore: {event.__name__} in {state}: removed" for state in ignore.states} <= set(what)
    assert {f"span: {span.activity}: removed" for span in SERVER.spans} <= set(what)
