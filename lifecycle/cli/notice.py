"""One drain, whatever asks for it and how often: signals in any order, and the end of the time that a job was given."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from lifecycle.cli.say import tell
from lifecycle.cli.signals import TIME_UP, at_once, inbox
from lifecycle.config import ServerConfig
from lifecycle.ending import for_work, limits
from lifecycle.journal import Journal, Kind
from lifecycle.resources.slurm import SlurmJob, asked, job_of, seconds_left, usable, with_kill_wait
from lifecycle.service import Living

SPARE = 5.0
"""Seconds before a job's end by which a drain that began in time, as it is configured, is over."""


class Attended(Living, Protocol):
    """Lives, and writes a journal of it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def config(self) -> ServerConfig:
        """Of its servers: the limits of a drain."""
        ...


class Notice:
    """What has asked a server, or several, to end, and by when they must.

    Args:
        server: what is to be drained.
        stop: set at the first notice, so that no new work is begun.
        work_first: let what has been begun come to its end before the server is told, as far as the time allows. It is
            told when that is done (by whoever does it), when it does not serve any more, or when there is just the time
            that it needs itself.
        hurry: called when all is to end at once.
    """

    def __init__(
        self, server: Attended, stop: anyio.Event, *, work_first: bool, hurry: Callable[[], None] = lambda: None
    ) -> None:
        self._server = server
        self._hurry = hurry
        self._stop = stop
        self._work_first = work_first
        self._job = job_of(os.environ)
        self._told = False
        self._waiting: anyio.CancelScope | None = None
        self._work_by = self._drain_by = self._kill_by = 0.0
        self.came: list[int] = []
        """The signals, and `TIME_UP`, in the order in which they came."""

    async def listen(self, group: TaskGroup, but: Collection[int] = ()) -> None:
        """Take signals, for ever; those in `but` are somebody else's."""
        while True:
            number = await inbox.next()
            if number not in but:
                self.take(number, group)

    def take(self, number: int, group: TaskGroup) -> None:
        """Act on a signal."""
        self.came.append(number)
        self._stop.set()
        if at_once(self.came):
            self._hurry()
            group.start_soon(self._server.kill)
            return
        first = len(self.came) == 1
        if self._job is not None:
            self._job = replace(self._job, state="")  # what it was before says nothing of it now
            group.start_soon(self._ask_again, number)
        self._set(number)
        name = signal.Signals(number).name if number else "the time is nearly over"
        tell(f"\n{name}: {'draining' if first else 'draining already'}; {self._what_next()}")
        if first:
            group.start_soon(self._drain)
        elif self._told:
            group.start_soon(self._tell_server)

    def _what_next(self) -> str:
        ctrl_c = "once more" if signal.SIGINT in self.came else "Ctrl-C twice"
        left = self._drain_by - anyio.current_time()
        limit = f"; what is in flight has {max(0.0, left):.0f} s" if self._job is not None else ""
        return f"{ctrl_c} ends at once{limit}"

    def _set(self, number: int) -> None:
        """Set the limits by what is known now. Without any knowledge, the first ones stay."""
        left = None if self._job is None else seconds_left(number, time.time(), self._job)
        if left is None and self._drain_by:
            return
        now, found = anyio.current_time(), limits(self._server.config, None if left is None else usable(left))
        self._work_by, self._drain_by, self._kill_by = now + for_work(found), now + found.drain, now + found.kill
        if self._waiting is not None:
            self._waiting.deadline = self._work_by

    async def _ask_again(self, number: int) -> None:
        """A signal may have come with another end than the one that was known."""
        assert self._job is not None
        self._job = await asked(self._job)
        self._set(number)
        if self._told:
            await self._tell_server()

    async def _drain(self) -> None:
        if self._work_first:
            with anyio.CancelScope(deadline=self._work_by) as self._waiting:
                while self._server.state == "Healthy":
                    await self._server.journal.wait(
                        lambda record: record.kind is Kind.TRANSITION, after=self._server.journal.seq
                    )
        self._told = True
        await self._tell_server()

    async def _tell_server(self) -> None:
        await self._server.stop(max(0.0, self._kill_by - anyio.current_time()))

    async def mind_the_clock(self, group: TaskGroup, before: float | None, say: Callable[[str], None]) -> None:
        """Say, here and in the journal, which job this is and when it ends; give notice in time before that.

        Args:
            before: seconds before the end. None: as many as a drain may take. Never more than half of what the job has.
            say: takes a line for people.
        """
        if self._job is None:
            return
        if self._job.end is None:
            self._job = await asked(self._job)
        await self._server.journal.wait(lambda record: True)  # the first record is the beginning's
        self._write_down(self._job)
        group.start_soon(self._find_kill_wait)
        if self._job.end is None or before == 0 or not self._work_first:
            return
        left = self._job.end - time.time()
        wanted = limits(self._server.config).kill + SPARE if before is None else before
        reserve = max(0.0, min(wanted, left / 2))
        short = f" (of the {wanted:g} s that were asked for, half of what the job has)" if reserve < wanted else ""
        say(
            f"  {self._job.text()} ends at {clock(self._job.end)}: no new prompts from {reserve:.0f} s before that on"
            f"{short}; what is left then is for another run"
        )
        while (pause := (self._job.end or 0.0) - reserve - time.time()) > 0:
            await anyio.sleep(pause)
            self._job = await asked(self._job)  # the limit may have been moved meanwhile
        if not self.came:
            self.take(TIME_UP, group)

    def _write_down(self, job: SlurmJob) -> None:
        server = self._server
        ends = "" if job.end is None else f", ends at {clock(job.end)}"
        detail = {"phase": f"{job.text()}{ends}", "job": job.id, "restarts": job.restarts, "end": job.end}
        server.journal.write(Kind.PHASE, server.starts, before=server.state, after=server.state, detail=detail)

    async def _find_kill_wait(self) -> None:
        assert self._job is not None
        kill_wait = (await with_kill_wait(self._job)).kill_wait  # other things may have become known meanwhile
        self._job = replace(self._job, kill_wait=kill_wait)


def clock(at: float) -> str:
    """A time for people, in their zone.

    >>> len(clock(0))
    19
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
