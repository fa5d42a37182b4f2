"""Makes shared memory as engines do. A script: `segments.py MARK HOW...`, whose words say what it does, in order:

`segment` a segment of SharedMemory with something in it, `semaphore` a named semaphore, `file` a plain file that is
written and kept open, `child` go on in a child, `use:NAME` attach to a segment. It says what it has made, `ready` at
the end, and lingers.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import get_context, resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

FOLDER = Path("/dev/shm")


def untracked(name: str, kind: str) -> None:
    """Python's tracker would clean up after a kill if it were spared: engines that are not Python's have none."""
    resource_tracker.unregister(name, kind)


def main() -> None:
    mark, *words = sys.argv[1:]
    kept: list[object] = []
    for number, word in enumerate(words):
        path = FOLDER / f"{mark}-{os.getpid()}-{number}"
        if word == "child":
            if os.fork():
                signal.pause()
        elif word == "segment":
            memory = SharedMemory(path.name, create=True, size=1 << 20)
            os.pwrite(memory._fd, b"x", 0)  # type: ignore[attr-defined]
            untracked(f"/{path.name}", "shared_memory")
            kept.append(memory)
            print(path, flush=True)
        elif word == "semaphore":
            lock = get_context("spawn").Lock()
            name = lock._semlock.name  # type: ignore[attr-defined]
            untracked(name, "semaphore")
            kept.append(lock)
            print(FOLDER / f"sem.{name[1:]}", flush=True)
        elif word == "file":
            path.write_text("for later")
            kept.append(path.open("r+"))
            print(path, flush=True)
        elif word.startswith("use:"):
            kept.append(SharedMemory(word[4:]))
            untracked(f"/{word[4:]}", "shared_memory")
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
