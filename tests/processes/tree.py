"""The leader of a process tree whose members try to get away. A script: `tree.py MARK TERM CHILD...`.

TERM says what the leader does on SIGTERM: `exit`, `ignore`. CHILD is a list of words joined by `+`: `session` (setsid),
`double` (its parent dies), `deaf` (ignores SIGTERM), `quiet` (closes the output), `bare` (an empty environment),
`stopped` (SIGSTOP), `late` (forks once more when it gets SIGTERM). Each says what it is and each SIGTERM that it gets;
when all are there, the leader says `ready` and how many it has.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import NoReturn


def say(text: str) -> None:
    try:
        os.write(1, f"{text}\n".encode())
    except OSError:
        return


def member(mark: str, name: str, ready: int) -> None:
    """Become one member of the tree, for a while."""
    words = name.split("+")

    def on_term(number: int, frame: object) -> None:
        say(f"{name} got SIGTERM")
        if "late" in words:
            os.fork()
        elif "deaf" not in words:
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    if "quiet" in words:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
    say(f"{name} has pid {os.getpid()}")
    os.write(ready, b"x")
    os.close(ready)
    if "stopped" in words:
        os.kill(os.getpid(), signal.SIGSTOP)
    linger()


def child(mark: str, name: str, ready: int) -> None:
    words = name.split("+")
    if os.fork():
        if "double" in words:
            os.wait()
        return
    if "session" in words:
        os.setsid()
    if "double" in words and os.fork():
        os._exit(0)
    os.set_inheritable(ready, True)
    environment = {} if "bare" in words else dict(os.environ)
    os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, mark, f"={name}", str(ready)], environment)


def main() -> None:
    mark, term, *children = sys.argv[1:]
    if term.startswith("="):
        member(mark, term[1:], int(children[0]))
    got, ready = os.pipe()
    for name in children:
        child(mark, name, ready)
    for _ in children:
        assert os.read(got, 1) == b"x"

    def on_term(number: int, frame: object) -> None:
        say("leader got SIGTERM")
        if term == "exit":
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    say(f"leader has pid {os.getpid()}")
    say(f"ready: {len(children)}")
    linger()


def linger() -> NoReturn:
    """Longer than any test, not for ever."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
