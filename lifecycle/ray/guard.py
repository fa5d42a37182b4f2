"""Ends what an actor leaves behind when it is killed together with its keepers.

A keeper ends its server's tree when its manager has gone; but Ray, when it ends an actor's process (the driver has
died, `ray.kill`), kills all direct children of that process first, and a keeper is one (ray 2.60,
`kill_child_processes_on_worker_exit`). So each actor has a guard: a process that is not its child, holds one end of a
pipe, and looks after the records of its servers when the other end closes.

Run as `python -P guard.py PIPE MANAGER STARTED STATE_DIR ROOT`; ROOT is where `lifecycle` is found.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # `typing` and `pathlib` are for the few guards that have something to do
if TYPE_CHECKING:
    from pathlib import Path

KEEPERS_TURN = 5.0
"""Seconds that a keeper which lives has to end its tree the polite way."""
SIGHT = 0.02
"""Seconds between two looks."""


def begin(state_dir: Path) -> int:
    """Start the guard of this process. Gives the end of the pipe that must stay open as long as this process lives."""
    import subprocess
    from pathlib import Path

    from lifecycle.resources.reap import start_time

    read, write = os.pipe()
    pid, root = os.getpid(), Path(__file__).parents[2]
    words = [str(read), str(pid), str(start_time(pid)), str(state_dir), str(root)]
    try:
        subprocess.run(
            [sys.executable, "-P", __file__, *words], pass_fds=(read,), start_new_session=True, check=True, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    return write


def end_servers(manager: int, started: int, state_dir: Path) -> None:
    """End every server that this dead manager has left; those whose keepers live are left to them at first."""
    from lifecycle.resources.reap import is_alive, records

    patience = time.monotonic() + KEEPERS_TURN
    for record in records(state_dir):
        if record.is_here and (record.manager, record.manager_started) == (manager, started):
            while time.monotonic() < patience and is_alive(record.keeper, record.keeper_started):
                time.sleep(SIGHT)
            record.end()


def main() -> None:
    """Let the parent go, wait until the pipe closes, look after what is left."""
    pipe, manager, started, state_dir, root = sys.argv[1:]
    if os.fork():
        os._exit(0)  # the guard is nobody's child now
    os.read(int(pipe), 1)
    sys.path.insert(0, root)
    from pathlib import Path

    end_servers(int(manager), int(started), Path(state_dir))


if __name__ == "__main__":
    main()
