"""`stoker stop NAME`: have the command that tends a server drain and end it, and wait until it has."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from lifecycle.cli.say import put, tell
from lifecycle.errors import ConfigError
from lifecycle.resources.desk import Status, ask, managers
from lifecycle.resources.reap import is_alive, start_time

LOOK, WORD = 0.1, 5.0
"""Seconds between two looks whether a manager has ended, and between two lines about that."""


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 all that was asked for has ended, 1 it has not within --timeout."""
    chosen = choose([said for said in managers() if isinstance(said, Status)], args.name, everything=args.all)
    begun = {status.manager: start_time(status.manager) for status in chosen}
    for status in chosen:
        try:
            ask(Path(status.at), "kill" if args.now else "stop")
        except (ConnectionRefusedError, FileNotFoundError):
            continue  # it has ended meanwhile
    return 0 if _ended(begun, args.timeout, _names(chosen)) else 1


def choose(found: list[Status], name: str | None, *, everything: bool) -> list[Status]:
    """The managers whose first server, or any, has this name. Raises `ConfigError` for none and for several."""
    if everything:
        return found
    if name is None:
        raise ConfigError("say which server, or --all; `stoker ps` shows them")
    chosen = [status for status in found if any(name in (each.name, str(status.manager)) for each in status.servers)]
    if not chosen:
        here = ", ".join(sorted({each.name for status in found for each in status.servers})) or "none"
        raise ConfigError(f"no command here tends a server {name!r}; there are: {here}")
    if len(chosen) > 1:
        pids = ", ".join(str(status.manager) for status in chosen)
        raise ConfigError(f"{len(chosen)} commands tend a server {name!r}: give the manager's pid instead ({pids})")
    (status,) = chosen
    if name not in (status.servers[0].name, str(status.manager)):
        whole = status.servers[0].name
        raise ConfigError(f"server {name!r} is a part of {whole!r}, which would start it again: stop {whole!r}")
    return chosen


def _names(chosen: list[Status]) -> str:
    return ", ".join(status.servers[0].name if status.servers else str(status.manager) for status in chosen)


def _ended(begun: dict[int, int], timeout: float | None, names: str) -> bool:
    """Wait for the end of processes. Says so when it takes long, and whether they have ended."""
    since, said = time.monotonic(), 0.0
    while any(is_alive(pid, started) for pid, started in begun.items()):
        waited = time.monotonic() - since
        if timeout is not None and waited >= timeout:
            tell(f"stoker: {names} has not ended within --timeout {timeout:g} s; `stoker ps` shows what it waits for")
            return False
        if waited >= said + WORD:
            said = waited
            tell(f"  {names}: ending for {waited:.0f} s …")
        time.sleep(LOOK)
    put(f"ended: {names}" if names else "no server runs here")
    return True
