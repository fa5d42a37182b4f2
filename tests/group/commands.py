"""Several `stoker` commands on this machine that take themselves for hosts of one group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lifecycle.resources.ports import free_port
from tests.cli.command import argv
from tests.fake import DIRECT, fake_command

GUARD = 60.0
"""Seconds after which a wait that should have ended long ago fails its test."""
QUICK = ("backoff_initial=0", "drain_timeout=5", "terminate_timeout=10", "heartbeat_timeout=2", "gather_timeout=30")
Json = dict[str, Any]


@dataclass(eq=False)
class Command:
    """One `stoker serve --json`, and what it has said."""

    process: subprocess.Popen[str]
    said: list[Json] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _more: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        for stream, take in ((self.process.stdout, self._take), (self.process.stderr, self.errors.append)):
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()

    def _read(self, stream: Any, take: Callable[[str], None]) -> None:
        for line in stream:
            take(line)
            with self._more:
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def _take(self, line: str) -> None:
        if line.startswith("{"):
            self.said.append(json.loads(line))

    def wait(self, wanted: Callable[[Json], bool], after: int = 0) -> int:
        """The number of the first thing said from `after` on for which `wanted` holds, plus one."""
        deadline = time.monotonic() + GUARD
        with self._more:
            while True:
                for number, each in enumerate(self.said[after:], after + 1):
                    if wanted(each):
                        return number
                assert time.monotonic() < deadline, f"it never came; said: {self.story()}"
                self._more.wait(0.5)

    def mentions(self, words: str) -> None:
        """Wait until it has said these words, in whatever way."""
        deadline = time.monotonic() + GUARD
        with self._more:
            while words not in f"{self.said} {self.told}":
                assert time.monotonic() < deadline, f"it never said {words!r}: {self.story()}"
                self._more.wait(0.5)

    def entered(self, state: str, server: str = "", after: int = 0) -> int:
        """Wait until the group or host (or a `server`) enters a state; see `wait`."""
        return self.wait(lambda each: is_transition(each, state, server), after)

    def story(self) -> list[str]:
        lines = [f"{e['server']}: {e['event']} → {e['after']}" for e in self.said if e["kind"] == "transition"]
        phases = [f"{e['server']}: {e['detail'].get('phase')}" for e in self.said if e["kind"] == "phase"]
        return [*lines, *phases, *self.errors]

    def states(self, server: str) -> list[str]:
        """The states that a server, group or host has entered."""
        return [e["after"] for e in self.said if e["kind"] == "transition" and e["server"] == server]

    def diagnoses(self) -> list[Json]:
        """What was found to be wrong, in the order of the transitions that it caused."""
        return [
            {**e["detail"]["diagnosis"], "of": e["server"]}
            for e in self.said
            if e["kind"] == "transition" and e["detail"].get("diagnosis")
        ]

    def pid(self, server: str) -> int:
        """The main process of the latest attempt of a server."""
        return int(max((e["seq"], e["pid"]) for e in self.said if e.get("pid") and e["server"] == server)[1])

    def url(self) -> str:
        return str(next(e["url"] for e in reversed(self.said) if e["kind"] == "url"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(GUARD)

    @property
    def told(self) -> str:
        return "".join(self.errors)


def is_transition(each: Json, state: str, server: str = "") -> bool:
    """Whether a record is the entry of a state by a server, or without a name by a group or its host."""
    own = server == each.get("server") if server else "-rank-" not in each.get("server", "")
    return each["kind"] == "transition" and each["after"] == state and own


@dataclass
class Hosts:
    """Commands of one group, each with folders of its own."""

    folder: Path
    nodes: int = 2
    head: str = field(default_factory=lambda: f"127.0.0.1:{free_port('127.0.0.1')}")
    commands: list[Command] = field(default_factory=list)

    def start(
        self, rank: int, *settings: str, verb: tuple[str, ...] = ("serve", "--json"), env: dict[str, str] | None = None,
        **flags: Any,
    ) -> Command:  # fmt: skip
        """Start one host. `settings` are KEY=VALUE; `flags` those of the fake server."""
        words = [*verb, "--command", fake_command(**flags), "--model", "fake", "--nodes", str(self.nodes)]
        words += ["--node-rank", str(rank), "--head", self.head, "--name", "g"]
        for setting in (*QUICK, *settings):
            words += ["--set", setting]
        home = self.folder / f"host-{rank}"
        process = subprocess.Popen(
            argv(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
            env={**os.environ, "XDG_STATE_HOME": str(home), **(env or {})},
        )  # fmt: skip
        self.commands.append(Command(process))
        return self.commands[-1]

    def pair(self, *settings: str, **flags: Any) -> tuple[Command, Command]:
        """Head and one worker, Healthy."""
        head, worker = self.start(0, *settings, **flags), self.start(1, *settings, **flags)
        head.entered("Healthy")
        head.wait(lambda each: each["kind"] == "url")
        return head, worker

    def live(self) -> list[int]:
        """Processes that carry these hosts' state folders in their environment."""
        mark = f"XDG_STATE_HOME={self.folder}/host-".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]

    def end(self) -> None:
        """Kill whatever is left."""
        for command in self.commands:
            if command.process.poll() is None:
                command.process.send_signal(signal.SIGCONT)
                command.process.kill()
                command.process.wait(GUARD)

    def left(self) -> list[int]:
        """What lives on, once it has had the time to end."""
        deadline = time.monotonic() + 15
        while self.live() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.live()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def ask(url: str) -> str:
    """One answer of the group."""
    import urllib.request

    body = json.dumps({"model": "fake", "prompt": "hello", "max_tokens": 3}).encode()
    with DIRECT.open(urllib.request.Request(f"{url}/v1/completions", body), timeout=30) as answer:
        text: str = json.loads(answer.read())["choices"][0]["text"]
        return text
