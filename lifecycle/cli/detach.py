"""`stoker serve --detach NAME`: the same command in the background; this one goes when the server serves."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from lifecycle.cli.say import put, tell
from lifecycle.errors import ConfigError
from lifecycle.resources.desk import Status, managers
from lifecycle.resources.local import LocalHost, private

LOOK = 0.05
"""Seconds between two looks at what the manager says."""
FLAG = "--detach"
URL = '"kind":"url"'
"""Part of the line that tells the URL where all lines are JSON."""


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 the server serves, and its manager goes on; else that of the manager."""
    name = args.detach
    if "/" in name or name.startswith("."):
        raise ConfigError(f"--detach {name!r}: a name is a part of file names; leave out / and a dot at its beginning")
    for status in managers():
        if isinstance(status, Status) and any(each.name == name for each in status.servers):
            raise ConfigError(f"manager {status.manager} tends a server {name!r} already: `stoker stop {name}` first")
    folder = private(LocalHost().state_dir / "managers")
    said, out = folder / f"{name}.log", folder / f"{name}.out"
    with said.open("wb") as errors, out.open("wb") as output:
        manager = subprocess.Popen(
            (sys.executable, "-P", "-m", "lifecycle.cli", *undetached(args.words, name)),
            stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True,
        )  # fmt: skip
    try:
        return _watch(manager, said, out, args)
    except KeyboardInterrupt:
        tell(f"\nending manager {manager.pid}")
        manager.terminate()
        return manager.wait()


def undetached(words: Sequence[str], name: str) -> list[str]:
    """The command line of the manager: without --detach, which may be cut short, and with the name.

    >>> undetached(["serve", "--detach", "a", "--backend", "echo", "--", "--detach", "x"], "a")
    ['serve', '--name', 'a', '--backend', 'echo', '--', '--detach', 'x']
    """
    ours, end, theirs = list(words), [], []
    if "--" in ours:
        at = ours.index("--")
        ours, end, theirs = ours[:at], ["--"], ours[at + 1 :]
    for at, word in enumerate(ours):
        flag, equals, _ = word.partition("=")
        if len(flag) > len("--d") and FLAG.startswith(flag):
            ours[at : at + (1 if equals else 2)] = ["--name", name]
            break
    return [*ours, *end, *theirs]


def _watch(manager: subprocess.Popen[bytes], said: Path, out: Path, args: argparse.Namespace) -> int:
    """Repeat what the manager says until its server serves, or it ends."""
    with said.open("rb") as errors, out.open("rb") as output:
        line = b""
        while True:
            ended = manager.poll()
            _repeat(errors)
            while piece := output.readline():
                line += piece
                if not line.endswith(b"\n"):
                    continue
                text, line = line.decode("utf-8", "replace").rstrip("\n"), b""
                put(text)
                if not args.json or URL in text:
                    tell(f"manager {manager.pid} goes on; `stoker ps`, `stoker logs {args.detach}` and `stoker stop "
                         f"{args.detach}` find it, and what it says goes to {said}")  # fmt: skip
                    return 0
            if ended is not None:
                return ended if ended >= 0 else 128 - ended
            time.sleep(LOOK)


def _repeat(errors: IO[bytes]) -> None:
    data = errors.read()
    if data:
        tell(os.fsdecode(data).removesuffix("\n"))
