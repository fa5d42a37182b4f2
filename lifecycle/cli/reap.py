"""`stoker reap`: what dead managers left behind; shown first, ended with --yes."""

from __future__ import annotations

import argparse
from pathlib import Path

from lifecycle.cli.say import put
from lifecycle.resources.local import LocalHost
from lifecycle.resources.reap import leftovers


def run(args: argparse.Namespace) -> int:
    """The command. Exit code 0 also when there was nothing to do."""
    host = LocalHost(Path(args.state_dir) if args.state_dir else None)
    found = leftovers(host.state_dir)
    for leftover in found:
        pids = ", ".join(map(str, sorted(leftover.processes()))) or "none left"
        put(f"{leftover.label}: manager {leftover.manager} has died; processes: {pids}")
        if args.yes and not leftover.end():
            put("  something of it survives SIGKILL (a driver may hold it): try again later")
    if not found:
        put("nothing was left behind")
    elif args.yes:
        put(f"ended and removed: {len(found)}")
    else:
        put("run again with --yes to end these")
    return 0
