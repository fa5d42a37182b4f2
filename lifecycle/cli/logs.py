"""`stoker logs NAME`: what a server's latest attempt has printed; -f: and what it prints, attempt after attempt."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path

from lifecycle.cli.say import put, tell
from lifecycle.errors import ConfigError
from lifecycle.resources.desk import Status, managers
from lifecycle.resources.local import LocalHost

LOOK = 0.2
"""Seconds between two looks at a log that is followed."""


def run(args: argparse.Namespace) -> int:
    """The command. With --follow it ends when nobody tends the server any more, or by Ctrl-C."""
    host = LocalHost(Path(args.state_dir) if args.state_dir else None)
    path = present_log(args.name) or last_log(host.state_dir / "logs", args.name)
    if path is None:
        raise ConfigError(f"no log of a server {args.name!r} is in {host.state_dir / 'logs'}, and none runs here; "
                          "if it had a log_dir or a state_dir of its own, look there")  # fmt: skip
    tell(f"==> {path}")
    for line in tail(path, args.lines):
        put(line)
    if args.follow:
        for line in follow(args.name, path):
            put(line)
    return 0


def present_log(name: str) -> Path | None:
    """The log of a server that is tended now: that of its present or last attempt."""
    for said in managers():
        if isinstance(said, Status):
            for each in said.servers:
                if each.name == name and each.log:
                    return Path(each.log)
    return None


def last_log(folder: Path, name: str) -> Path | None:
    """The newest log of a server in a folder: NAME-MANAGER-ATTEMPT.log, with a number more where that was there."""
    pattern = re.compile(re.escape(name) + r"-\d+-\d+(\.\d+)?\.log")
    try:
        found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except OSError:
        return None
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a file. Raises `ConfigError` if it has gone."""
    try:
        return path.read_text("utf-8", "replace").splitlines()[-count:] if count else []
    except OSError as error:
        raise ConfigError(f"log {path} cannot be read: {error.strerror}") from None


def follow(name: str, path: Path) -> Iterator[str]:
    """The lines that are added to a log from now on, and then those of the next attempt, until nobody tends it."""
    at, rest = path.stat().st_size, b""
    while True:
        present = present_log(name)
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
        at += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
        if data:
            continue
        if present is None:
            if rest:
                yield rest.decode("utf-8", "replace")
            return
        if present != path:
            tell(f"==> {present}")
            path, at, rest = present, 0, b""
            continue
        time.sleep(LOOK)
