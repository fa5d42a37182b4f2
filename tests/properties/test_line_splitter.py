"""Lines come out the same however the bytes were cut, for any bytes, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.resources.log import CUT, LONGEST_LINE, LineSplitter, attempt_log, pieces, split, tail

PIECES = [
    *(b"\n", b"\r", b"\r\n", b"\x00", b"\x1b[31m", b"\x1b]0;t\x07", b"\x1b"),
    *(b"\xe2\x82\xac", b"\xe2\x82", b"\xff", b"a", b" "),
]
output = st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=40).map(b"".join)


@given(output, st.lists(st.integers(0, 200), max_size=20))
@example(b"a\r\nb", [2])
@example(b"\xe2\x82\xac\n", [2])
@example(b"\x1b[31mred\x1b[0m\n", [3])
@example(b"x" * (LONGEST_LINE + 1) + b"\n", [LONGEST_LINE])
def test_any_chunking_gives_the_lines_of_one_feed(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    lines: list[str] = []
    at = 0
    for cut in sorted(cuts):
        lines += splitter.feed(data[at:cut])
        at = max(at, cut)
    lines += splitter.feed(data[at:]) + splitter.flush()
    assert lines == split(data)


@given(output)
def test_no_control_character_and_no_empty_line_comes_out(data: bytes) -> None:
    for line in split(data):
        assert line
        assert all(character >= " " or character == "\t" for character in line)
        assert "\x7f" not in line


@given(st.integers(0, 3 * LONGEST_LINE), st.integers(2_000, 70_000))
def test_a_line_without_end_takes_bounded_memory_and_is_marked_when_cut(size: int, chunk: int) -> None:
    splitter = LineSplitter()
    for at in range(0, size, chunk):
        assert splitter.feed(b"x" * min(chunk, size - at)) == []
        assert sum(map(len, splitter._rest)) <= LONGEST_LINE
    lines = splitter.flush()
    assert lines == (["x" * min(size, LONGEST_LINE) + (CUT if size > LONGEST_LINE else "")] if size else [])
    assert splitter.feed(b"next\n") == ["next"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\r\nthree\rfour", ["one", "two", "three", "four"]),
        (b"\r 10%\r 20%\r\n", [" 10%", " 20%"]),
        (b"\n\n \x00\n", []),
        (b"caf\xc3\xa9 \xff \xe2\x82", ["café � �"]),
        (b"\x1b[1;32mINFO\x1b[0m up\n", ["INFO up"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x07\n", ["link"]),
        (b"nul\x00byte\tand tab\n", ["nulbyte\tand tab"]),
    ],
    ids=["breaks", "progress", "empty", "utf-8", "colours", "links", "nul"],
)
def test_lines_are_what_a_person_would_see(data: bytes, lines: list[str]) -> None:
    assert split(data) == lines


def test_a_carriage_return_ends_a_line_at_once() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"50%\r") == ["50%"]
    assert splitter.feed(b"\nnext\n") == ["next"]


def test_tail_joins_the_pieces_of_a_log_and_reads_only_their_ends(tmp_path: Path) -> None:
    head, older, newer = pieces(tmp_path / "a.log")
    head.write_bytes(b"first\n" * 200_000)
    older.write_bytes(b"second\nthi")
    newer.write_bytes(b"rd\nfourth\n")
    assert tail(head, 4) == ["first", "second", "third", "fourth"]
    assert len(tail(head, 10**9)) < 50_000
    assert tail(head, 0) == []
    assert tail(tmp_path / "missing.log", 5) == []


def test_an_attempts_log_is_new_and_private_whatever_the_label(tmp_path: Path) -> None:
    made = [attempt_log(tmp_path / "logs", "a/../b" * 100, 1) for _ in range(3)]
    assert len(set(made)) == 3
    for path in made:
        assert path.parent == tmp_path / "logs"
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
