"""Processes and the trees that they make. Part of the keeper: standard library only, and of that only what is cheap."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `typing`, which would cost a keeper 1 MiB
if TYPE_CHECKING:
    from collections.abc import Callable


def attempt(function: Callable[..., object], *arguments: object) -> None:
    """Call `function`; an `OSError` means that there was nothing to be done. (`contextlib` would cost 0.6 MiB.)"""
    try:
        function(*arguments)
    except OSError:
        return


def stat_of(pid: int | str) -> tuple[bytes, int, int, int] | None:
    """(state, parent, start time, process group) of a process (proc(5)), or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            words = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1]), int(words[19]), int(words[2])


def descendants(root: int) -> dict[int, tuple[bytes, int, int, int]]:
    """`stat_of` every descendant of a process by pid, zombies too. Of a subreaper: all that it ever started."""
    table = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := stat_of(name))}
    found: dict[int, tuple[bytes, int, int, int]] = {}
    parents = {root}
    while parents:
        children = {pid for pid, stat in table.items() if stat[1] in parents and pid not in found}
        found.update((pid, table[pid]) for pid in children)
        parents = children
    return found


def kill(pid: int, started: int) -> None:
    """SIGKILL the process that has this pid and this start time, never one that has got the pid since."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # Linux before 5.3
        handle = -1
    stat = stat_of(pid)
    if stat is not None and stat[2] == started:
        if handle >= 0:
            attempt(signal.pidfd_send_signal, handle, signal.SIGKILL)
        else:
            attempt(os.kill, pid, signal.SIGKILL)
    attempt(os.close, handle)


def kill_groups(tree: dict[int, tuple[bytes, int, int, int]]) -> None:
    """SIGKILL every process group of a tree: processes that replace themselves faster than they can be looked at do so
    inside a group. A group that was made in the tree has no other members, and its id is taken as long as it has one,
    be it a zombie."""
    done = {os.getpgrp()}
    for pid, (_, _, started, group) in tree.items():
        stat = stat_of(pid) if group not in done else None
        if stat is not None and stat[2:] == (started, group):
            done.add(group)
            attempt(os.killpg, group, signal.SIGKILL)
