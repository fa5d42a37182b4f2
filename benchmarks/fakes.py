"""The server that everything is measured with: the tests' fake server, ready at a moment that it can tell."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from lifecycle.config import ServerConfig, load_config
from tests.fake import DIRECT, SCRIPT, fake_command


def not_ready_for(seconds: float) -> dict[str, Any]:
    """Routes of a server that answers 503 for so many seconds after it has begun to listen."""
    rule = [{"until": seconds, "status": 503}]
    return {"/health": rule, "/v1/models": rule}


def config(state: Path, **flags: Any) -> ServerConfig:
    """A fake server under Stoker."""
    found, _ = load_config("custom", command=fake_command(**flags), model="fake", state_dir=str(state))
    return found


def stats(url: str) -> dict[str, Any]:
    with DIRECT.open(urllib.request.Request(f"{url}/_stats"), timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def alive(pids: list[int]) -> list[int]:
    """Those that still run (a zombie does not)."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def carrying(mark: str) -> list[int]:
    """Live processes of this user that have `mark` in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(name))
    return alive(found)


__all__ = ["SCRIPT", "alive", "carrying", "config", "not_ready_for", "stats"]
