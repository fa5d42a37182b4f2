"""The output file: every line whole, a torn one mended, one writer at a time."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.batch.output import Output
from lifecycle.errors import OutputError

LINES = [{"id": "a", "text": "ä\n"}, {"id": "b", "text": "x" * 50}, {"id": "c", "text": ""}]


def written(path: Path) -> bytes:
    output = Output(path)
    for line in LINES:
        output.append(line)
    output.close()
    return path.read_bytes()


@given(cut=st.integers(min_value=0, max_value=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_anywhere_the_whole_lines_stay_and_the_torn_one_goes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    path.unlink(missing_ok=True)
    data = written(path)[:cut]
    path.write_bytes(data)
    output = Output(path)
    kept = [line for _, line in output.finished()]
    assert output.torn == data[data.rfind(b"\n") + 1 :]
    output.mend()
    output.append(LINES[0])
    output.close()
    assert kept == LINES[: data.count(b"\n")]
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines == [*kept, LINES[0]]


def test_a_torn_line_longer_than_a_block_is_mended_too(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"id": 1}\n' + b"x" * (3 << 20))
    output = Output(path)
    assert output.mend() == 3 << 20
    output.close()
    assert path.read_bytes() == b'{"id": 1}\n'


@pytest.mark.parametrize("name", ["/dev/full", "/dev/null", "fifo"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OutputError, match="is not a regular file"):
        Output(tmp_path / name)


def test_lines_that_are_not_wanted_go_and_the_file_stays_locked(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path)
    output = Output(path)
    output.keep(lambda line: line["id"] != "b")
    with pytest.raises(OutputError, match="is being written"):
        Output(path)
    output.append(LINES[1])
    output.close()
    assert [json.loads(line)["id"] for line in path.read_bytes().splitlines()] == ["a", "c", "b"]
    assert list(tmp_path.iterdir()) == [path]


def test_it_knows_whether_it_has_lines(tmp_path: Path) -> None:
    output = Output(tmp_path / "out.jsonl")
    assert not output.has_lines
    output.append(LINES[0])
    output.sync()
    assert output.has_lines
    output.close()


def test_two_writers_are_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = Output(path)
    with pytest.raises(OutputError, match=f"is being written by .*{os.getpid()}"):
        Output(path)
    first.close()
    Output(path).close()


def test_a_folder_a_missing_folder_and_a_file_for_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a folder"):
        Output(tmp_path)
    with pytest.raises(OutputError, match="No such file or directory"):
        Output(tmp_path / "none" / "out.jsonl")
    with pytest.raises(OutputError, match="cannot be written"):
        Output(tmp_path / "file" / "out.jsonl")


def test_a_full_disk_leaves_whole_lines_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    output = Output(path)
    output.append(LINES[0])
    real = os.write

    def torn(fd: int, data: bytes) -> int:
        if len(data) > 10:
            return real(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", torn)
    line = {"id": "d", "text": "0123456"}
    assert len(json.dumps(line, separators=(",", ":"))) + 1 > 20
    with pytest.raises(OutputError, match=r"No space left on device.*run the same command again"):
        output.append({"id": "b" * 5})
    monkeypatch.undo()
    output.close()
    assert [json.loads(each) for each in path.read_bytes().splitlines()] == LINES[:1]
    assert path.read_bytes().endswith(b"\n")


def test_a_line_that_is_not_ours_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"id": 1}\nnotes\n')
    output = Output(path)
    with pytest.raises(OutputError, match="line 2 was not written by Stoker"):
        list(output.finished())
    output.close()
