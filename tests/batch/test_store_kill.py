"""Real processes on a real disk, killed at random moments."""

from __future__ import annotations

import gzip
import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

from lifecycle.batch.store import Store, open_store
from lifecycle.errors import OutputError
from tests.batch.store_writer import PART_SIZE, check_of, fails, line_of
from tests.effort import TIMES

RECORDS = 1500
KILLS = 4 * TIMES
REPORT = struct.Struct("<q")


def start(out: Path, format: str, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.batch.store_writer", str(out), format, str(RECORDS), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def numbers(reports: bytes) -> set[int]:
    whole = len(reports) // REPORT.size * REPORT.size
    return {number for (number,) in REPORT.iter_unpack(reports[:whole]) if number >= 0}


def lines(out: Path, format: str) -> list[dict[str, Any]]:
    """What lies on the disk, as somebody sees it who knows nothing of the store but the names of its files."""
    found: list[dict[str, Any]] = []
    growing = [out] if format == "single" else sorted(out.glob(".part-*.jsonl"))
    for path in (*growing, *(sorted(out.glob("part-*")) if format != "single" else ())):
        if path.suffix == ".parquet":
            found += pyarrow.parquet.read_table(path).to_pylist()
        else:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            assert not data or data.endswith(b"\n")
            found += map(json.loads, data.splitlines())
    return found


def opened(out: Path, format: str) -> Store:
    return open_store(out, format="jsonl" if format == "single" else format, part_size=PART_SIZE)


@pytest.mark.parametrize("format", ["single", "jsonl.gz", "parquet"])
def test_a_writer_that_is_killed_again_and_again_loses_tears_and_doubles_no_line(tmp_path: Path, format: str) -> None:
    out = tmp_path / ("out.jsonl" if format == "single" else "out")
    random = Random(format)
    told: set[int] = set()
    for seed in range(KILLS):
        with start(out, "jsonl" if format == "single" else format, seed) as writer:
            assert writer.stdout is not None
            reports = writer.stdout.read(REPORT.size * (1 + random.randrange(2 * RECORDS // KILLS)))
            writer.send_signal(signal.SIGKILL)
            reports += writer.stdout.read()
        told |= numbers(reports)
        with opened(out, format) as store:
            done = {number for number in range(RECORDS) if store.is_done(number, check_of(number))}
            assert all(fails(number) for number in told - done), "only those may be gone: the writer drops them"
            found = lines(out, format)
        assert sorted(line["id"] for line in found) == sorted(done)
        assert all(line == json.loads(line_of(line["id"])) for line in found)
    with start(out, "jsonl" if format == "single" else format, KILLS) as writer:
        assert writer.stdout is not None
        writer.stdout.read()
    assert writer.returncode == 0
    assert sorted(line["id"] for line in lines(out, format)) == list(range(RECORDS))


def test_a_second_run_is_told_which_one_writes_until_that_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with start(out, "jsonl", 0) as writer:
        assert writer.stdout is not None
        writer.stdout.read(REPORT.size)
        writer.send_signal(signal.SIGSTOP)
        with pytest.raises(OutputError, match=rf"is being written by another run \(pid {writer.pid} on .*, since "):
            open_store(out)
        writer.send_signal(signal.SIGKILL)
    open_store(out, part_size=PART_SIZE).close()
