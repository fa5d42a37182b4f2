"""Takes over a server whose manager has died, from the keeper that keeps it: the other side of `handover`."""

from __future__ import annotations

import os
import select
import signal
import socket
from dataclasses import replace
from pathlib import Path

import anyio

from lifecycle.errors import StokerError
from lifecycle.host import Kept
from lifecycle.resources import handover
from lifecycle.resources.process import PASS_ON, KeptProcess, Line, first_word
from lifecycle.resources.reap import Leftover, is_alive, start_time

KNOCK_TIMEOUT = 10.0
"""Seconds for a keeper to open its door: it is there at once, unless the machine is swamped."""


class Keeper:
    """A keeper that is not our child: it was a dead manager's. Implements `lifecycle.resources.process.Child`."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        if not is_alive(pid, started):
            self.close()
            raise ProcessLookupError(f"no process {pid}")

    def send_signal(self, number: int) -> None:
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has ended. Raises `TimeoutError` if it has not after so many seconds."""
        if self._handle >= 0:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise TimeoutError(f"keeper {self.pid} has not ended within {timeout:g} s")
            self.close()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


async def adopt(kept: Kept) -> KeptProcess:
    """Come in by the door of a keeper whose manager has died. Raises `StokerError`; cancelled half way, or killed, it
    leaves the server with its keeper, whose time begins anew."""
    leftover: Leftover = kept.record
    name = f"server {leftover.label!r}"
    try:
        keeper_ = Keeper(leftover.keeper, leftover.keeper_started)
    except OSError:
        raise StokerError(f"{name} is kept no longer: its keeper {leftover.keeper} has ended") from None
    control, theirs = socket.socketpair()
    output, theirs_too = socket.socketpair()
    theirs_too.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PASS_ON)
    line = Line(keeper_, control, output)
    try:
        with theirs, theirs_too:
            await anyio.to_thread.run_sync(_knock, leftover.door, theirs.fileno(), theirs_too.fileno())
        control.setblocking(False)
        output.setblocking(False)
        word, value, inbox = await first_word(control)
        if word != "adopted":
            raise StokerError(f"{name} is kept no longer: another manager has it, or its time is over")
        main, pipe = map(int, value.split())
        ours = replace(leftover, manager=os.getpid(), manager_started=start_time(os.getpid()), kept=True)
        return KeptProcess(Path(kept.keepsake.log), ours.started(main, pipe), line, inbox)
    except BaseException as error:
        line.close()
        keeper_.close()
        if isinstance(error, OSError):
            raise StokerError(
                f"{name} cannot be taken over: {error.strerror}; another manager has it, or its time is over"
            ) from None
        raise


def _knock(door: str, *fds: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(KNOCK_TIMEOUT)
        visitor.connect(door)
        socket.send_fds(visitor, [handover.MESSAGE], fds)
