"""What the README shows works as shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lifecycle.cli import parse
from lifecycle.config import load_config
from tests.cli.command import argv

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


PROGRAMS = [block for block in blocks("python") if not block.startswith("async def")]
(FUNCTION,) = [block for block in blocks("python") if block.startswith("async def")]
SAID = ["100 answers from http://127.0.0.1:", "'choices'", "There"]


@pytest.mark.parametrize(("program", "said"), list(zip(PROGRAMS, SAID, strict=True)), ids=SAID)
def test_every_program_runs_and_says_what_it_should(tmp_path: Path, program: str, said: str) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_the_function_makes_a_result_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTION)
    (tmp_path / "in.jsonl").write_text('{"question": "Why?"}\n')
    words = ["generate", "in.jsonl", "--output", "out.jsonl", "--backend", "echo", "--rollout", "own.py:critique"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(argv(words), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert line["question"] == "Why?"
    assert line["results"][0].keys() == {"draft", "final"}


def test_the_first_program_is_about_twenty_lines() -> None:
    assert len([line for line in PROGRAMS[0].splitlines() if line.strip()]) <= 20


def test_the_configuration_files_are_such(tmp_path: Path) -> None:
    found = []
    for block in blocks("toml"):
        path = tmp_path / "stoker.toml"
        path.write_text(block)
        found.append(load_config(file=path)[0])
        assert found[-1].backend == tomllib.loads(block)["backend"]
    custom, vllm = found
    assert custom.startup_timeout == 600
    assert (vllm.tensor_parallel, vllm.engine_args["enable-prefix-caching"]) == (2, False)


def test_every_command_line_parses() -> None:
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ stoker ")]
    assert len(lines) >= 6
    for line in lines:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line.removeprefix("$ stoker ").split(" < ")[0])]
        assert parse(words).verb == words[0]


def test_every_link_leads_to_a_file() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"make ([a-z-]+)", README))
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets <= made
