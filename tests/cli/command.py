"""Runs the `stoker` command as a user would: as a process, with a state folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 60.0
"""Seconds after which a hanging command fails its test."""


@dataclass
class Stoker:
    """The command, run in `folder`."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONFAULTHANDLER": "1"}

    def run(self, *words: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Ended:
        """Run it to its end."""
        done = subprocess.run(
            argv(words), input=stdin, capture_output=True, text=True, cwd=self.folder, timeout=LIMIT,
            env={**self.environment, **(env or {})},
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it; its standard error is merged into its output. Killed if it runs for longer than the limit."""
        process = subprocess.Popen(
            argv(words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
            env=self.environment,
        )  # fmt: skip
        guard = threading.Timer(LIMIT, process.kill)
        guard.daemon = True
        guard.start()
        return process

    def write(self, name: str, lines: Sequence[Any]) -> Path:
        path = self.folder / name
        path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
        return path

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def live_processes(self) -> list[int]:
        """Processes that were started with this test's state folder in their environment."""
        mark = f"XDG_STATE_HOME={self.folder / 'state'}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]

    def records(self) -> list[Path]:
        """Servers that the state folder still knows of."""
        return sorted((self.folder / "state").glob("stoker/servers/*.json"))


@dataclass
class Ended:
    code: int
    out: str
    err: str


def argv(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "lifecycle.cli", *words]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> Iterator[str]:
    """Lines of output up to the one that is wanted; fails if the output ends before."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        yield line
        if wanted(line):
            return
    raise AssertionError("the output ended: " + "".join(seen))


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read output until a line has `text` in it; that line."""
    *_, last = until(process, lambda line: text in line)
    return last
