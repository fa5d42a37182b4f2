"""Which processes use a compile cache: those that are told by their environment where it lies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lifecycle.resources.tree import stat_of

Environments = dict[int, list[str]]
"""Values of the variables of processes, by pid."""


def environments() -> Environments:
    """Of all of this user's processes but this one (proc(5), environ: as they were when it was started)."""
    found: Environments = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):  # gone, or another user's
                text = Path("/proc", name, "environ").read_bytes()
                found[int(name)] = [os.fsdecode(each.partition(b"=")[2]) for each in text.split(b"\0")]
    return found


def users(folder: Path, among: Environments) -> tuple[int, ...]:
    """Processes that are told to keep things in `folder` or below it, each without its children that are told so too.
    One that has written over its environment, as `setproctitle` does, is known by its parent."""
    told = {pid for pid, values in among.items() if any(points_into(value, folder, pid) for value in values)}
    parents = {pid: stat[1] for pid in told if (stat := stat_of(pid)) is not None and stat[0] not in (b"Z", b"X")}
    return tuple(sorted(pid for pid, parent in parents.items() if parent not in parents))


def points_into(value: str, folder: Path, pid: int) -> bool:
    """Whether a variable of a process has a path in `folder` as its value, by whatever way."""
    parts = Path(value).parts if folder.name in value else ()
    if folder.name not in parts:
        return False
    place = _upto(parts, folder.name)
    with suppress(OSError, ValueError):
        return os.path.samefile(os.path.join(f"/proc/{pid}/cwd", place), folder)
    return False


def _upto(parts: Sequence[str], name: str) -> str:
    return os.path.join(*parts[: parts.index(name) + 1])
