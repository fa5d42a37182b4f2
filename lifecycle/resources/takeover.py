"""Takes over a server whose manager has died, from the keeper that keeps it: the other side of `handover`."""

from __future__ import annotations

import os
import select
import signal
import socket
from dataclasses import replace
from pathlib import Path

import anyio

from lifecycle.errors import StokerError, Tended
from lifecycle.host import Kept
from lifecycle.resources import handover
from lifecycle.resources.keeper import ORPHAN_GRACE
from lifecycle.resources.process import PASS_ON, KeptProcess, Line, first_word
from lifecycle.resources.reap import PATIENCE, SIGHT, Leftover, is_alive, record_of, start_time

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
    """Come in by the door of a keeper whose manager has died. Raises `Tended` if another manager was faster, and
    `StokerError` if the server's time was over; cancelled half way, or killed, it leaves the server with its keeper,
    whose time begins anew."""
    leftover: Leftover = kept.record
    try:
        keeper = Keeper(leftover.keeper, leftover.keeper_started)
    except OSError:
        raise StokerError(f"server {leftover.label!r} is kept no longer: its keeper has ended") from None
    control, theirs = socket.socketpair()
    output, theirs_too = socket.socketpair()
    theirs_too.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PASS_ON)
    line = Line(keeper, control, output)
    try:
        with theirs, theirs_too:
            await anyio.to_thread.run_sync(_knock, leftover.door, theirs.fileno(), theirs_too.fileno())
        control.setblocking(False)
        output.setblocking(False)
        word, value, inbox = await first_word(control)
        if word == "adopted":
            main, pipe = map(int, value.split())
            ours = replace(leftover, manager=os.getpid(), manager_started=start_time(os.getpid()), kept=True)
            return KeptProcess(Path(kept.keepsake.log), ours.started(main, pipe), line, inbox)
    except OSError:
        pass  # nobody opens
    except BaseException:
        _let_go(line, keeper)
        raise
    _let_go(line, keeper)
    raise await _why_not(leftover)


def _let_go(line: Line, keeper: Keeper) -> None:
    line.close()
    keeper.close()


async def _why_not(leftover: Leftover) -> StokerError:
    """Wait until it is clear why a keeper has not opened."""
    deadline = anyio.current_time() + ORPHAN_GRACE + PATIENCE
    while is_alive(leftover.keeper, leftover.keeper_started) and anyio.current_time() < deadline:
        now = record_of(leftover)
        if now is not None and is_alive(now.manager, now.manager_started):
            return Tended(f"manager {now.manager} has taken over the server {leftover.label!r}, and tends it")
        await anyio.sleep(SIGHT)
    return StokerError(f"server {leftover.label!r} is kept no longer: its time was over")


def _knock(door: str, *fds: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(KNOCK_TIMEOUT)
        visitor.connect(door)
        socket.send_fds(visitor, [handover.MESSAGE], fds)
