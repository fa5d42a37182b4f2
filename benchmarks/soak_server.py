"""The echo server with a child that holds shared memory, as engines have them. A script: its words are the server's."""

from __future__ import annotations

import mmap
import os
import signal
import sys


def hold() -> None:
    """In a session of its own, until it is killed: it neither looks after its parent nor obeys SIGTERM."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shared = os.open(f"/dev/shm/{os.environ['SOAK']}-{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(shared, mmap.PAGESIZE)
    with mmap.mmap(shared, mmap.PAGESIZE):
        while True:
            signal.pause()


if os.fork() == 0:
    hold()
os.execv(sys.executable, (sys.executable, "-P", "-m", "backends.echo_server", *sys.argv[1:]))
