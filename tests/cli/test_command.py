"""`stoker`: quick to answer, exact about what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from lifecycle.diagram import render
from tests.cli.command import Stoker, argv

HEAVY = ("httpx", "aiohttp", "anyio", "transitions", "rich", "psutil", "filelock", "msgspec", "ray", "vllm", "sglang")


def test_the_version_is_the_distributions(stoker: Stoker) -> None:
    assert stoker.run("--version").out == f"stoker {version('stoker')}\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["generate", "--help"], ["serve", "--help"]])
def test_help_imports_no_engine_and_no_http(words: list[str]) -> None:
    program = f"import sys; from lifecycle.cli import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
    program += "print('IMPORTED', *sys.modules)"
    out = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout
    imported = out[out.index("IMPORTED") :].split()
    assert "lifecycle.cli" in imported
    assert not set(HEAVY) & set(imported)


def test_help_names_every_command_and_every_exit_code(stoker: Stoker) -> None:
    told = stoker.run("--help").out
    for word in ("generate", "serve", "check", "diagram", "reap", "0 done", "1 server", "2 wrong", "3 done", "130"):
        assert word in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--backend", "echo", "--", "--x", "1"], "backend 'echo' takes no engine_args"),
        (["serve", "--backend", "vllm", "--", "x"], "'x' after -- belongs to no flag"),
        (["reap", "--", "--x"], "what comes after -- is for an engine, and this command starts none"),
        (["serve", "--backend", "ecko"], "backend 'ecko' is not installed; did you mean 'echo'?"),
        (["serve"], "no backend is given"),
        (["serve", "--backend", "echo", "--set", "laatency=1"], "unknown setting 'laatency'; did you mean 'latency'?"),
        (["serve", "--backend", "echo", "--set", "drain_timout=1"], "did you mean 'drain_timeout'?"),
        (["serve", "--backend", "echo", "--set", "latency"], "--set 'latency' is not KEY=VALUE"),
        (["serve", "--backend", "echo", "--set", "latency=quick"], "latency"),
        (["serve", "--backend", "echo", "--set", "latency=-1"], "latency = -1 must not be negative"),
        (
            ["serve", "--backend", "echo", "--set", "drain_timeout=60", "--set", "terminate_timeout=20"],
            "drain_timeout = 60 is longer than terminate_timeout = 20",
        ),
        (["serve", "--backend", "echo", "--port", "70000"], "port = 70000 must be between 1 and 65535"),
        (["serve", "--backend", "echo", "--host", "0.0.0.0"], "lets others reach the server without a key"),
        (["serve", "--backend", "custom"], "backend 'custom' needs a command"),
        (["serve", "--command", "no-such-program --port {port}"], "no program 'no-such-program' on PATH"),
        (["serve", "--command", "python --port {prt}"], "unknown placeholder '{prt}'; did you mean 'port'?"),
        (["serve", "--backend", "endpoint"], "base_url"),
        (["serve", "--backend", "echo", "--config", "none.toml"], "configuration file none.toml"),
        (["serve", "--backend", "echo", "--set", "api_key_env=NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["generate", "none.jsonl", "--output", "out", "--backend", "echo"], "input none.jsonl cannot be read"),
        (["serve", "--command", "python server.py", "--model", "m"], "command has no {port}"),
        (["serve", "--backend", "echo", "--set", "ready_path=nope"], "ready_path = 'nope' must begin with a slash"),
        (["diagram", "--backend", "ecko"], "did you mean 'echo'?"),
        (["diagram", "--journal", "none"], "journal none cannot be read"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name_before_anything_starts(
    stoker: Stoker, words: list[str], said: str
) -> None:
    ended = stoker.run(*words)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_no_command_shows_the_help_and_is_wrong_use(stoker: Stoker) -> None:
    ended = stoker.run()
    assert ended.code == 2
    assert "usage: stoker" in ended.out


def test_a_configuration_file_has_the_same_names_as_set(stoker: Stoker) -> None:
    (stoker.folder / "job.toml").write_text('backend = "echo"\nlaatency = 1\n')
    assert "unknown setting 'laatency'; did you mean 'latency'?" in stoker.run("serve", "--config", "job.toml").err
    (stoker.folder / "job.toml").write_text("backend = echo\n")
    assert "job.toml is not TOML" in stoker.run("serve", "--config", "job.toml").err


@pytest.mark.parametrize("format", ["mermaid", "dot", "svg", "table"])
def test_a_diagram_is_printed_or_written(stoker: Stoker, format: str) -> None:
    assert stoker.run("diagram", "--format", format, "--backend", "endpoint").out == render(format, "endpoint")
    stoker.run("diagram", "--format", format, "--output", "picture")
    assert (stoker.folder / "picture").read_text() == render(format)


def test_a_pipe_that_closes_early_is_no_traceback(stoker: Stoker) -> None:
    shell = f"{' '.join(argv(['diagram', '--format', 'svg']))} | head -c 10"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=Path("/"))
    assert done.stderr == ""


def test_commands_work_without_standard_streams() -> None:
    for words in (["--version"], ["diagram"], ["options"], ["--help"]):
        shell = f"{' '.join(argv(words))} >&- 2>&- <&-"
        assert subprocess.run(["bash", "-c", shell], timeout=60).returncode == 0


@pytest.mark.parametrize("verb", ["serve", "check"])
@pytest.mark.parametrize(
    ("key", "meant"), [("replica_gpu", "replica_gpus"), ("gather_timout", "gather_timeout"), ("ray_cpu", "ray_cpus")]
)
def test_a_key_that_is_nearly_one_of_a_fleet_or_group_is_understood(
    stoker: Stoker, verb: str, key: str, meant: str
) -> None:
    ended = stoker.run(verb, "--backend", "echo", "--set", f"{key}=1")
    assert ended.code == 2
    assert f"unknown setting {key!r}; did you mean {meant!r}?" in ended.err


def test_the_options_of_every_kind_are_listed(stoker: Stoker) -> None:
    said = stoker.run("options").out
    for name in ("max_attempts", "part_size", "gather_timeout", "replica_gpus", "router_policy", "placement_timeout"):
        assert re.search(rf"^{name}\b", said, re.MULTILINE), name


def test_the_read_me_documents_every_flag(stoker: Stoker) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for command in ("generate", "serve", "check", "diagram", "reap"):
        for flag in re.findall(r"--[a-z-]+", stoker.run(command, "--help").out):
            assert flag in readme or flag == "--help", f"{command} {flag}"
