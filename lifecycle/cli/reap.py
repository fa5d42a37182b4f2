"""`stoker reap`: what dead managers left behind; shown first, ended with --yes."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from lifecycle.cli.say import put
from lifecycle.resources.local import LocalHost
from lifecycle.resources.reap import leftovers

BLOCK, MIB = 512, 1024**2
"""Bytes; st_blocks counts the first (stat(3type))."""


def run(args: argparse.Namespace) -> int:
    """The command. Exit code 0 also when there was nothing to do."""
    host = LocalHost(Path(args.state_dir) if args.state_dir else None)
    found = leftovers(host.state_dir)
    for leftover in found:
        pids = ", ".join(map(str, sorted(leftover.processes()))) or "none left"
        put(f"{leftover.label}: manager {leftover.manager} has died; processes: {pids}{shared(leftover.memory())}")
        if args.yes and not leftover.end():
            put("  something of it survives SIGKILL (a driver may hold it): try again later")
    if not found:
        put("nothing was left behind")
    elif args.yes:
        put(f"ended and removed: {len(found)}")
    else:
        put("run again with --yes to end these")
    return 0


def shared(files: list[Path]) -> str:
    """How much shared memory was left, in words; empty if none was."""
    if not files:
        return ""
    size = 0
    for path in files:
        with suppress(OSError):
            size += path.stat().st_blocks * BLOCK
    return f"; shared memory: {len(files)} files with {size / MIB:.0f} MiB"
