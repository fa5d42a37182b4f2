"""What the soak would find: lines that are twice, missing or other, and whatever is left behind."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import Soak

CALM: dict[int, Any] = {number: {"number": number, "text": f"answer {number}"} for number in range(3)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([0, 1, 2], []),
        ([0, 1, 2, 1], ["1 lines are twice, such as [1]"]),
        ([2, 0], ["1 lines are missing, such as [1]"]),
        ([0, 1, 9], ["1 lines are missing, such as [2]", "1 lines are other than in a calm run, such as [9]"]),
    ],
)
def test_lines_that_are_not_as_in_a_calm_run_are_found(tmp_path: Path, lines: list[int], said: list[str]) -> None:
    soak = Soak(tmp_path, random.Random(0))
    soak.output.write_text("".join(json.dumps(CALM.get(each, {"number": each})) + "\n" for each in lines))
    soak.look_at_the_job(CALM)
    assert [each.removeprefix("job 0: ") for each in soak.wrong] == said


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    soak = Soak(tmp_path, random.Random(0))
    (tmp_path / "tmp").mkdir()
    assert not any(soak.left().values())
    (tmp_path / "tmp" / "stk-1").mkdir()
    record = tmp_path / "state" / "stoker" / "servers" / "1.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    shared = Path(f"/dev/shm/{soak.mark}-1")
    shared.touch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=soak.environment) as process:
        try:
            found = {kind for kind, left in soak.left().items() if left}
        finally:
            process.kill()
            shared.unlink()
    assert found == {"processes", "records of servers", "files in /dev/shm", "temporary files"}
