"""The whole of Stoker on one seed, a fixed number of seeds; `make simulate` tries more."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.effort import TIMES
from tests.simulation.whole import world
from tests.simulation.whole.__main__ import again, main, report
from tests.simulation.whole.lives import AT_ONCE, run_lives
from tests.simulation.whole.world import run

SEEDS = 50 * TIMES
LIVES = 10 * AT_ONCE * TIMES


@pytest.mark.parametrize("tenth", range(10))
def test_no_rule_is_broken_whatever_goes_wrong_and_all_is_well_soon_after(tenth: int) -> None:
    for seed in range(tenth, SEEDS, 10):
        ran = run(seed, "trio" if seed % 5 == 4 else "asyncio")
        assert not ran.errors, f"{again(seed)}: {ran.errors[:3]}"
        assert ran.lines == ran.draw.records


def test_no_rule_is_broken_in_the_life_of_one_server() -> None:
    lived = run_lives(range(LIVES))
    assert not lived.broken
    assert lived.ends.total() == LIVES
    assert set(lived.ends) == {"Stopped", "Failed"}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_seed_gives_the_same_journal_byte_for_byte_in_any_process(backend: str, tmp_path: Path) -> None:
    journals = []
    for hashing in ("1", "2"):
        out = tmp_path / hashing
        command = [sys.executable, "-m", "tests.simulation.whole", "--seed", "5", "--backend", backend]
        environ = {**os.environ, "PYTHONHASHSEED": hashing}
        subprocess.run([*command, "--output", str(out)], env=environ, check=True, capture_output=True)
        journals.append((out / "simulated-5.jsonl").read_bytes())
    assert journals[0] == journals[1] == run(5, backend).journal
    assert journals[0] != run(6, backend).journal


def test_a_broken_rule_is_told_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(world, "BOUND", -1.0)  # nothing is over so soon
    ran = run(2)
    assert report(ran, "asyncio") == 1
    said = capsys.readouterr().err
    assert "not over" in said
    words = said.split("python -m tests.simulation.whole ")[1].split()
    assert main([*words, "--output", str(tmp_path)]) == 1
    assert "not over" in capsys.readouterr().err
    assert "<svg" in (tmp_path / "simulated-2.svg").read_text()
    assert (tmp_path / "simulated-2.jsonl").read_bytes() == ran.journal


def test_a_machine_that_forgets_a_lease_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules can be broken: here the tree of a dead manager is not ended by its keeper."""
    monkeypatch.setattr("tests.simulation.whole.machine.KeptProcess.orphaned", lambda process: None)
    broken = [error for seed in range(20) for error in run(seed).errors]
    assert any("trees" in error for error in broken)


def test_rates_of_faults_differ_from_seed_to_seed() -> None:
    drawn = [replace(run(seed).draw, seed=0) for seed in (1, 2, 3)]
    assert len({tuple(each.rates.items()) for each in drawn}) == 3
