"""The signals that ask a command to end, caught from its first moment to its last, and what they mean.

    SIGTERM, SIGUSR1, SIGUSR2, SIGHUP   a notice: drain. However many come, in any order, it is one drain
    SIGINT                              Ctrl-C: drain; the second one ends at once
    SIGCONT                             nothing: it is sent before SIGTERM by Slurm, and whenever something is resumed

A second SIGTERM ends nothing at once: whoever forwards signals sends it twice within milliseconds, Slurm sends it again
when a grace is over, and the time that is left then is taken into account. SIGHUP comes twice from a shell that goes.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

TIME_UP = 0
"""Stands for a signal where nobody has sent one: the time that the job was given is nearly over."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SOON = (signal.SIGUSR1, signal.SIGUSR2, TIME_UP)
"""What says that the time is nearly over, and not that nothing more is wanted."""
WORK_LEFT = 75
"""Exit code: ended in order for want of time, and the same command goes on (EX_TEMPFAIL of sysexits.h)."""

STUCK = 3
"""Ctrl-C so many times without anybody who takes them: whatever it is that hangs is left."""


class Told(KeyboardInterrupt):
    """A signal that came before there was anything to drain."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Inbox:
    """The signals that have come and were not taken yet."""

    def __init__(self) -> None:
        self._came: deque[int] = deque()
        self._raises = False
        self._bell: tuple[int, int] | None = None

    def open(self) -> None:
        """Catch signals from now on. One that comes before `hold` is raised as `Told`."""
        self._bell = os.pipe()
        for end in self._bell:
            os.set_blocking(end, False)
        self._raises = True
        for number in ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) has SIGHUP ignored, and means it
                signal.signal(number, self._take)

    def hold(self) -> None:
        """Keep those that come from now on, for `next`."""
        self._raises = False

    async def next(self) -> int:
        """The next one; waits for it."""
        import anyio

        self.hold()
        while not self._came:
            if self._bell is None:
                await anyio.sleep_forever()
            else:
                await anyio.wait_readable(self._bell[0])
                os.read(self._bell[0], 4096)
        return self._came.popleft()

    def _take(self, number: int, frame: object) -> None:
        if self._raises:
            self._raises = False  # what is undone because of the first must not be broken off by a second
            raise Told(number)
        self._came.append(number)
        if self._came.count(signal.SIGINT) >= STUCK:
            raise KeyboardInterrupt
        if self._bell is not None:
            with suppress(BlockingIOError):  # it has been rung often enough
                os.write(self._bell[1], b"\0")


inbox = Inbox()
"""This process's own."""


def at_once(signals: Sequence[int]) -> bool:
    """Whether these signals, together, mean that nothing is to be waited for any longer."""
    return list(signals).count(signal.SIGINT) > 1


def exit_code_of(signals: Sequence[int]) -> int:
    """Of a command that these signals have ended before its work was done: 130 if at once, `WORK_LEFT` if the first
    said that the time is nearly over, else 128 and its number, as shells have it."""
    if at_once(signals):
        return 128 + signal.SIGINT
    return WORK_LEFT if signals[0] in SOON else 128 + signals[0]
