"""What docs/many-nodes.md shows can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from lifecycle.cli import parse
from lifecycle.cli.signals import WORK_LEFT
from tests.cli.slurm_program import directives, options

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "many-nodes.md").read_text(encoding="utf-8")
LINES = [line[2:] for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_every_stoker_command_line_parses() -> None:
    lines = [line for line in LINES if line.startswith("stoker ")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line)[1:]
        assert parse(words).verb == words[0]


def test_what_a_script_is_given_is_a_command_line_of_generate() -> None:
    lines = [shlex.split(line)[1:] for line in LINES if line.startswith("sbatch ")]
    assert len(lines) == 3
    for words in lines:
        given, rest = options("sbatch").parse_known_args(words[: words.index("prompts.jsonl")])
        (script,) = rest
        assert (ROOT / script).is_file()
        assert any(vars(given).values()) == (len(words[: words.index("prompts.jsonl")]) > 1)
        assert parse(["generate", *words[words.index("prompts.jsonl") :]]).verb == "generate"


def test_there_are_no_other_commands() -> None:
    assert {line.split()[0] for line in LINES} == {"stoker", "sbatch"}


def test_every_link_leads_to_a_file() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert len(targets) >= 3
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target


def test_the_exit_code_that_the_page_and_the_scripts_speak_of_is_the_commands() -> None:
    assert f"Exit code {WORK_LEFT}" in PAGE
    for script in (ROOT / "examples" / "slurm").glob("*.sh"):
        assert f'"$code" -eq {WORK_LEFT}' in script.read_text()


def test_the_scripts_are_for_as_many_tasks_as_the_page_says() -> None:
    assert "--array=0-63" in directives((ROOT / "examples" / "slurm" / "array.sh").read_text())
