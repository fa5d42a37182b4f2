"""Finding the installed engine: its interpreter, its version, its options; asked once, kept, asked anew when it is
another one. A stand-in engine is installed into a folder that looks like a virtual environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from backends.engine import find_engine, installed, interpreter, read_dump, shebang
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.host import ASK_TIMEOUT, NOTHING
from lifecycle.resources.ask import ask
from tests.backends.standin import PARSER, environment

pytestmark = pytest.mark.anyio

class Asking:
    """Counts how often an interpreter is asked."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT
    ) -> str:
        self.times += 1
        return await ask(argv, env=env, timeout=timeout)


def config(tmp_path: Path, python: Path | str) -> ServerConfig:
    return ServerConfig("sglang", python=str(python), cache_dir=str(tmp_path / "caches"))


async def test_an_engine_is_asked_once_and_its_flags_are_kept(tmp_path: Path) -> None:
    asking, wanted = Asking(), config(tmp_path, environment(tmp_path))
    first = await find_engine("sglang", wanted, asking)
    again = await find_engine("sglang", wanted, asking)
    assert asking.times == 1
    assert first == again
    assert (first.version, [option.names for option in first.options.all]) == (
        "0.9.1", [("--model-path",), ("--eager", "--no-eager"), ("--size",), ("--lora",)],
    )  # fmt: skip
    assert first.has("no-eager")
    assert not first.has("eagre")


async def test_another_version_is_asked_anew(tmp_path: Path) -> None:
    asking, wanted = Asking(), config(tmp_path, environment(tmp_path))
    await find_engine("sglang", wanted, asking)
    environment(tmp_path, "0.9.2", PARSER.replace("--lora", "--adapter"))
    found = await find_engine("sglang", wanted, asking)
    assert (asking.times, found.version, found.has("adapter"), found.has("lora")) == (2, "0.9.2", True, False)


async def test_flags_that_were_kept_badly_are_asked_anew(tmp_path: Path) -> None:
    asking, wanted = Asking(), config(tmp_path, environment(tmp_path))
    first = await find_engine("sglang", wanted, asking)
    (kept,) = (tmp_path / "caches" / "options").iterdir()
    kept.write_text('[{"names": ["--half')
    assert await find_engine("sglang", wanted, asking) == first
    assert asking.times == 2


async def test_flags_that_cannot_be_kept_are_asked_each_time(tmp_path: Path) -> None:
    asking, wanted = Asking(), config(tmp_path, environment(tmp_path))
    (tmp_path / "caches").write_text("a file where the folder should be")
    assert await find_engine("sglang", wanted, asking) == await find_engine("sglang", wanted, asking)
    assert asking.times == 2


async def test_an_engine_that_is_too_old_is_refused_with_both_versions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sglang 0\.9\.1 .* is older than 0\.10\.0, the oldest that is supported"):
        await find_engine("sglang", config(tmp_path, environment(tmp_path)), ask_never, oldest="0.10.0")


async def ask_never(argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
    raise AssertionError("nothing is to be asked")


async def test_an_interpreter_without_the_engine_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vllm is not installed in .*pip install vllm"):
        await find_engine("vllm", config(tmp_path, sys.executable), ask_once)


async def ask_once(argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
    return await ask(argv, env=env, timeout=timeout)


async def test_an_engine_that_cannot_be_imported_is_named_with_its_last_words(tmp_path: Path) -> None:
    python = environment(tmp_path, parser="raise ImportError('libcuda.so.1: cannot open shared object file')")
    with pytest.raises(ConfigError, match=r"sglang 0\.9\.1 .* cannot be asked for its flags.*libcuda\.so\.1"):
        await find_engine("sglang", config(tmp_path, python), ask_once)


async def test_a_program_that_is_no_python_is_called_so_without_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"python = '/bin/ls' is no Python interpreter: .* --python PATH") as raised:
        await find_engine("sglang", config(tmp_path, "/bin/ls"), ask_once)
    assert "cannot access" not in str(raised.value)


async def test_a_program_that_prints_no_flags_is_named(tmp_path: Path) -> None:
    python = environment(tmp_path)
    python.write_text("#!/bin/sh\necho '[]'\n")
    with pytest.raises(ConfigError, match="it printed no options"):
        await find_engine("sglang", config(tmp_path, python), ask_once)


def test_an_interpreter_that_cannot_be_run_is_named() -> None:
    with pytest.raises(ConfigError, match=r"python = '/no/python' is not a program"):
        interpreter("vllm", "/no/python")


def test_without_an_interpreter_that_of_the_command_on_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "sglang"
    command.write_text(f"#!{sys.executable}\nimport sglang\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert interpreter("sglang") == sys.executable


def test_without_engine_and_command_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match=r"vllm is not installed where Stoker is.*pip install vllm, or .*--python"):
        interpreter("vllm")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"#!{sys.executable}\n", sys.executable),
        (f"#! {sys.executable}\n", sys.executable),
        (f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n", sys.executable),
        (f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n", sys.executable),
        ("#!/no/such/python3\n", None),
        ("#!/bin/bash\nvllm\n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_the_interpreter_behind_a_command_is_in_its_first_lines(tmp_path: Path, text: str, found: str | None) -> None:
    (tmp_path / "command").write_text(text)
    assert shebang(tmp_path / "command") == found


def test_versions_are_read_from_the_folders_of_an_environment_without_running_it(tmp_path: Path) -> None:
    python = environment(tmp_path)
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "torch-2.13.0.dist-info").mkdir()
    python.write_text("not a program")
    found = installed("sglang", str(python))
    assert found is not None
    assert found.engine == "0.9.1"


def test_a_dump_is_found_among_what_an_engine_prints() -> None:
    said = 'noise\nstoker-options: [{"names": ["--a"], "dest": "a"}]\nlast words\n'
    assert [option.names for option in read_dump(said)] == [("--a",)]
