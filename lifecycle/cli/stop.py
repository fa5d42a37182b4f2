"""`stoker stop NAME`: have the command that tends a server drain and end it, and wait until it has."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import anyio

from lifecycle.cli.say import put, tell
from lifecycle.errors import ConfigError
from lifecycle.host import Kept
from lifecycle.resources.desk import Status, ask, managers
from lifecycle.resources.local import LocalHost
from lifecycle.resources.reap import Leftover, find_kept, is_alive, records, start_time
from lifecycle.resources.takeover import adopt
from lifecycle.resources.tree import kill

KEPT_GRACE = 45.0
"""Seconds from SIGTERM to SIGKILL for a server without a manager: the limits of a drain, as they are by default."""
LOOK, WORD = 0.1, 5.0
"""Seconds between two looks whether a manager has ended, and between two lines about that."""


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 all that was asked for has ended, 1 it has not within --timeout."""
    found = [said for said in managers() if isinstance(said, Status)]
    state_dir = LocalHost(Path(args.state_dir) if args.state_dir else None).state_dir
    if args.name and not args.all and not args.leave and not _tended(found, args.name):
        kept = find_kept(state_dir, args.name)
        if kept is not None:
            return anyio.run(_end_kept, kept, args.name, args.now)
    chosen = choose(found, args.name, everything=args.all)
    if args.leave:
        for status in chosen:
            leave(status, list(records(state_dir)))
        return 0
    begun = {status.manager: start_time(status.manager) for status in chosen}
    for status in chosen:
        try:
            ask(Path(status.at), "kill" if args.now else "stop")
        except (ConnectionRefusedError, FileNotFoundError):
            continue  # it has ended meanwhile
    return 0 if _ended(begun, args.timeout, _names(chosen)) else 1


def _tended(found: list[Status], name: str) -> bool:
    return any(name in (each.name, str(status.manager)) for status in found for each in status.servers)


async def _end_kept(kept: Kept, name: str, now: bool) -> int:
    """A server whose manager has died: nobody but its keeper can end it."""
    process = await adopt(kept)
    with anyio.CancelScope(shield=True):
        await process.end(0 if now else KEPT_GRACE)
    put(f"ended: {name}, which was kept since its manager {kept.manager} died")
    return 0


def leave(status: Status, found: list[Leftover]) -> None:
    """End a manager, and not its servers. Raises `ConfigError` if they would not be kept."""
    pids = {each.pid for each in status.servers if each.pid}
    mine = [record for record in found if record.manager == status.manager and record.main in pids]
    unkept = [record.label for record in mine if not record.kept]
    if unkept or not mine:
        raise ConfigError(
            f"{', '.join(unkept) or _names([status])} would not be kept: only what is Healthy or sleeps, and was "
            "started with --keep-for, can be left; for another --state-dir, name it"
        )
    kill(status.manager, mine[0].manager_started)
    put(f"left: {', '.join(record.label for record in mine)}; attach with `stoker serve --attach NAME` in time")


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
