"""docs/faults.md says what the tests say, and every row has one."""

from __future__ import annotations

import pytest

from tests.faults.kinds import Kind, Row
from tests.faults.page import ROOT, marked, page, read, shown_by, wrong

TABLE = (Kind("one", 1, (Row("a", "b"),)), Kind("two", 2, (Row("c", "d"), Row("e", "f"))))


def test_every_row_has_a_test_and_the_page_shows_them_all() -> None:
    tests = shown_by(read())
    assert wrong(tests) == []
    assert (ROOT / "docs" / "faults.md").read_text(encoding="utf-8") == page(tests)


@pytest.mark.parametrize(
    ("rows", "said"),
    [((1, 2), "row 3 has no test"), ((1, 2, 3, 4), "row 4, which is not in the table")],
)
def test_a_row_without_a_test_and_a_test_without_a_row_are_found(rows: tuple[int, ...], said: str) -> None:
    assert [said in line for line in wrong(dict.fromkeys(rows), TABLE)] == [True]


def test_a_gap_in_the_numbers_is_found() -> None:
    assert "not with 2" in wrong(dict.fromkeys((1, 3)), (TABLE[0], Kind("late", 3, (Row("c", "d"),))))[0]


def test_marks_are_read_from_plain_and_async_tests() -> None:
    source = "@pytest.mark.fault(1, 2)\nasync def test_a(): ...\n@pytest.mark.fault(3)\n@x\ndef test_b(): ...\n"
    assert list(marked(source)) == [("test_a", 1), ("test_a", 2), ("test_b", 3)]
    with pytest.raises(ValueError, match="no number of a row"):
        list(marked("@pytest.mark.fault(ROW)\ndef test_c(): ...\n"))
