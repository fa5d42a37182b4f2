"""A fake server for tests: a real process that misbehaves on request (its flags are in `fake_parts.py`).

    with fake_server(ready_after=0.5) as there:
        ...                                    # something that talks to there.url
        assert there.stats()["generations"] == 3
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("fake_server.py")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never through a proxy."""


def fake_flags(**flags: Any) -> list[str]:
    """Words for `fake_server.py`: `bind_after=2` is `--bind-after 2`, True a bare flag, a list repeats it; a dict
    becomes JSON."""
    words = []
    for key, value in flags.items():
        name = f"--{key.replace('_', '-')}"
        if key == "routes" or isinstance(value, dict):
            words += [name, json.dumps(value)]
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is True:
                words.append(name)
            elif item is not False and item is not None:
                words += [name, str(item)]
    return words


def fake_argv(port: int, **flags: Any) -> list[str]:
    """A command line to start the fake server directly."""
    return [sys.executable, "-E", "-S", str(SCRIPT), "--port", str(port), *fake_flags(**flags)]


def fake_command(*, attempts: Sequence[Mapping[str, Any]] = (), **flags: Any) -> str:
    """A command line for the `custom` backend.

    Args:
        attempts: flags that are added in the first, second, ... attempt; the last ones hold for all later attempts.
        flags: the flags of every attempt. A value may be a placeholder: `extra_port="{port1}"`.
    """
    words = [sys.executable, "-E", "-S", str(SCRIPT)]
    own = ["--host", "{host}", "--port", "{port}", "--attempt", "{attempt}"]
    if "model" not in flags:
        own += ["--model", "fake"]
    if attempts:
        own += ["--per-attempt", literal(json.dumps([fake_flags(**more) for more in attempts]))]
    for key, value in flags.items():
        filled = isinstance(value, str) and value.startswith("{") and value.endswith("}")
        own += fake_flags(**{key: value}) if filled else [literal(word) for word in fake_flags(**{key: value})]
    return shlex.join([*map(literal, words), *own])


def literal(word: str) -> str:
    """`word` as it must be written where braces mark placeholders."""
    return word.replace("{", "{{").replace("}", "}}")


def stats(url: str) -> dict[str, Any]:
    """What the fake server at `url` has counted so far. Blocks: call it in a thread from async code."""
    return control(url, "/_stats")


def control(url: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Change a running fake server: `/_routes`, `/_say`, `/_exit`, `/_kill_children`. Returns its counts."""
    data = None if body is None else json.dumps(body).encode()
    with DIRECT.open(urllib.request.Request(url.rstrip("/") + path, data), timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


@dataclass(frozen=True)
class FakeServer:
    """A fake server that runs."""

    url: str
    """Without `/v1`."""
    process: subprocess.Popen[bytes]

    def stats(self) -> dict[str, Any]:
        """What it has counted so far. Blocks."""
        return stats(self.url)

    def tell(self, path: str, **body: Any) -> dict[str, Any]:
        """Change it: `tell("/_routes", **{"/health": {"status": 503}})`. See `control`."""
        return control(self.url, path, body)


BANNER = b"fake: listening on "


@contextmanager
def fake_server(**flags: Any) -> Iterator[FakeServer]:
    """Start a fake server on a free port, and end it. Returns when it listens; raises `RuntimeError`, with what it has
    said, if it ends before that. It must say when it listens: neither `no_banner` nor `block_buffered`.

    Args:
        flags: as for `fake_flags`.
    """
    with tempfile.TemporaryFile() as said, subprocess.Popen(
        fake_argv(0, **flags), stdout=subprocess.PIPE, stderr=said, stdin=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith(BANNER):
                    break
            else:
                said.seek(0)
                words = (b"".join(lines) + said.read()).decode("utf-8", "replace")
                raise RuntimeError(f"the fake server has ended before it listened; it said: {words}")
            threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
            yield FakeServer(f"http://{lines[-1].removeprefix(BANNER).decode().strip()}", process)
        finally:
            process.kill()
            process.wait()
