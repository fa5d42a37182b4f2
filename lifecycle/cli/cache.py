"""`stoker cache`: the compile caches of the engines; listed, and removed with --yes."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.filesize import decimal

from lifecycle.cli.say import put, tell
from lifecycle.errors import ConfigError, StokerError
from lifecycle.resources.cache_entries import Entry, chosen, clear, entries
from lifecycle.resources.caches import default_root
from lifecycle.resources.local import LocalHost

COLUMNS = ("CACHE", "ENGINE", "STATE", "AGE", "SIZE", "BY", "USERS", "KEY")


def run(args: argparse.Namespace) -> int:
    """The command. Exit code 1 if a cache that was to be removed is there still."""
    cache_dir = Path(args.cache_dir) if args.cache_dir else default_root()
    state_dir = LocalHost(Path(args.state_dir) if args.state_dir else None).state_dir
    found = entries(cache_dir.absolute(), state_dir)
    if args.action == "list":
        return _show(found, args.json, f"no compile caches in {cache_dir}")
    if (args.which is None) == (not args.all):
        raise ConfigError("name a cache, by its name or a part of its key, or say --all")
    picked = found if args.all else chosen(found, args.which)
    if not picked and args.which is not None:
        raise ConfigError(
            f"no compile cache in {cache_dir} has {args.which!r} in its name or key; see `stoker cache list`"
        )
    if not args.yes:
        _show(picked, args.json, f"no compile caches in {cache_dir}")
        if picked:
            tell("run again with --yes to remove these")
        return 0
    return 1 if [entry for entry in picked if not _remove(entry, args.json, args.force)] else 0


def _show(found: Sequence[Entry], as_json: bool, nothing: str) -> int:
    if as_json:
        for entry in found:
            put(json.dumps(asdict(entry), ensure_ascii=False))
    elif found:
        put(table(found, time.time()))
    else:
        put(nothing)
    return 0


def _remove(entry: Entry, as_json: bool, force: bool) -> bool:
    problem = ""
    try:
        clear(entry, force=force)
    except StokerError as error:
        problem = str(error)
    if as_json:
        put(json.dumps({"digest": entry.digest, "folder": entry.folder, "removed": not problem, "error": problem}))
    elif problem:
        tell(f"stoker: not removed: {problem}")
    else:
        put(f"removed {entry.folder} ({decimal(entry.size)})")
    return not problem


def table(found: Sequence[Entry], now: float) -> str:
    """The caches, one in a line; the key last, since it is long. `now`: Unix seconds."""
    rows = [COLUMNS]
    for entry in found:
        by = f"{entry.holder.host}:{entry.holder.pid}" if entry.holder else "-"
        rows.append((
            entry.digest, entry.engine or "-", entry.state, age(now - entry.at), decimal(entry.size), by,
            ",".join(map(str, entry.users)) or "-", entry.key.replace("\n", " ") or "-",
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS) - 1)]
    folders = sorted({str(Path(entry.folder).parent) for entry in found})
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    ]
    return "\n".join((*lines, *(f"in {folder}" for folder in folders)))


def age(seconds: float) -> str:
    """A time in the largest unit that it has two of, such as "3 h".

    >>> age(100), age(150), age(200_000)
    ('100 s', '2 min', '2 d')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
