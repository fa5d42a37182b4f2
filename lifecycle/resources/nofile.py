"""How many files a process may have open: each connection is one, and the usual soft limit of 1,024 is soon reached."""

from __future__ import annotations

import resource

OTHERS = 256
"""Files beside the connections: logs, parts of the output, locks, pipes of servers, libraries that are loaded late."""


def room_for(connections: int) -> str | None:
    """Raise this process's soft limit of open files to what so many connections need, as far as the hard limit lets.

    It is never lowered. Returns None if there is room, or else the sentence that says what is missing and the way out.
    """
    needed = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _at_least(soft, needed):
        return None
    soft = needed if _at_least(hard, needed) else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == needed:
        return None
    return (
        f"{connections:,} requests at once need {needed:,} open files, and the hard limit of this process is {hard:,}: "
        f"ask for {max(1, hard - OTHERS):,} at once, or raise it (ulimit -Hn {needed}, LimitNOFILE= of a systemd unit)"
    )


def _at_least(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
