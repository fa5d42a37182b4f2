"""Whatever a server prints: lines, phases and causes are read from it without an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.adapter import Adapter, backends, load_adapter
from lifecycle.diagnosis import Exit, diagnose
from lifecycle.evidence import read
from lifecycle.resources.log import CUT, LONGEST_LINE, LineSplitter, split
from tests.fuzz.damage import CUTS, HARD, NASTY, edits, pieces

EXCERPTS = sorted((Path(__file__).parents[1] / "excerpts").glob("*.log"))
FRONT = st.sampled_from(
    ["", "ERROR ", "(EngineCore pid=7) ERROR 01-01 00:00:00 [core.py:1] ", "{", '{"level":"error",', "phase: load "]
)
BYTES = st.lists(NASTY | st.binary(max_size=80) | st.sampled_from([path.read_bytes()[:400] for path in EXCERPTS]),
                 max_size=8).map(b"".join)  # fmt: skip
ADAPTERS = [load_adapter(name) for name in sorted(backends())]


@HARD
@given(BYTES, CUTS)
def test_any_bytes_are_lines_that_can_be_shown_however_they_come(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces(data, cuts) for line in splitter.feed(piece)] + splitter.flush()
    assert lines == split(data)
    assert all(line.isprintable() or not set(line) & set(map(chr, range(9))) for line in lines)
    assert all(0 < len(line) <= LONGEST_LINE + len(CUT) for line in lines)


@HARD
@given(FRONT, BYTES)
@example('{"a":', b"[" * 60_000)
def test_any_line_has_a_level_and_a_message(front: str, data: bytes) -> None:
    for line in split(front.encode() + data):
        found = read(line)
        assert found.message in line or line.startswith("{")


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
@HARD
@given(FRONT, BYTES)
@example("phase: load ", "²/³".encode())
def test_any_line_is_a_phase_or_none(adapter: Adapter, front: str, data: bytes) -> None:
    for line in split(front.encode() + data):
        phase = adapter.phase(line)
        assert phase is None or phase.name
        assert phase is None or phase.total is None or phase.total >= 0


@HARD
@given(
    st.lists(FRONT, max_size=3), BYTES, st.none() | st.integers(-70, 300).map(Exit),
    st.sampled_from(["", "start", "run"]), st.integers(0, 2),
)  # fmt: skip
@example(['{"a":'], b"[" * 60_000, Exit(1), "start", 0)
def test_any_end_of_a_log_has_a_diagnosis_that_repeats_words_of_it(
    fronts: list[str], data: bytes, ended: Exit | None, phase: str, kills: int
) -> None:
    lines = split(b"\n".join([*(front.encode() + data for front in fronts), data]))
    found = diagnose("exited", "it ended", exit=ended, lines=lines, phase=phase, oom_kills=kills)
    assert found.cause
    assert found.text()
    assert found.signature
    assert not found.evidence or any(part in "\n".join(lines) for part in found.evidence.splitlines())


@HARD
@given(st.data())
def test_a_real_log_that_is_damaged_still_has_a_diagnosis(data: st.DataObject) -> None:
    log, _ = data.draw(edits(data.draw(st.sampled_from(EXCERPTS)).read_bytes()))
    assert diagnose("exited", "it ended", exit=Exit(1), lines=split(log), phase="start").text()
