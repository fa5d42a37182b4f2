"""Whatever kills a job, and whenever: in the end each record has the one line that it has without a kill."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Stoker
from tests.effort import TIMES

KILLS = 4 * TIMES
RECORDS = [{"prompt": f"Say {number}", "number": number} for number in range(30 * KILLS)]
"""More than are finished between the kills: each of them meets a job at work."""


def lines_of(output: Path) -> list[dict[str, Any]]:
    """The whole lines of an output, also of a part that grows."""
    files = [output] if output.is_file() else sorted(output.glob("*part-*.jsonl")) if output.is_dir() else []
    whole = [data[: data.rfind(b"\n") + 1] for data in map(Path.read_bytes, files)]
    return [json.loads(line) for data in whole for line in data.splitlines()]


def wait_for_lines(process: subprocess.Popen[str], output: Path, count: int) -> None:
    """The files are what survives, so nothing else is looked at; a file that grows is no event, so it is polled."""
    while process.poll() is None and len(lines_of(output)) < count:
        time.sleep(0.01)


@pytest.mark.parametrize("output", ["out.jsonl", "out/"])
def test_killed_at_random_moments_it_ends_with_the_lines_of_a_job_that_was_not(stoker: Stoker, output: str) -> None:
    stoker.write("in.jsonl", RECORDS)
    words = ["generate", "in.jsonl", "--backend", "echo", "--max-tokens", "6", "--part-size", "25"]
    calm = stoker.run(*words, "--output", "calm.jsonl")
    assert calm.code == 0, calm.err
    roll, path, seen = random.Random(7), stoker.folder / output, 0
    for _ in range(KILLS):
        process = stoker.start(
            *words, "--output", output, "--concurrency", "8", "--set", "latency=0.05", "--journal", "/dev/null"
        )
        wait_for_lines(process, path, seen + roll.randrange(12))
        process.send_signal(roll.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        process.communicate(timeout=60)
        before, seen = seen, len(lines_of(path))
        assert before <= seen < len(RECORDS), "what was written stays, and there is work left"
    ended = stoker.run(*words, "--output", output, "--journal", "/dev/null")
    assert ended.code == 0, ended.err
    expected = {line["number"]: line for line in lines_of(stoker.folder / "calm.jsonl")}
    found = lines_of(path)
    assert len(found) == len(RECORDS)
    assert {line["number"]: line for line in found} == expected
