"""The time in which a driver runs: from the entry of an `async with` until everything is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup

from lifecycle.driver import Driver
from lifecycle.errors import StokerError
from lifecycle.journal import Journal
from lifecycle.server_facts import Start, Stop


class Living:
    """Runs a driver in a task of its own, and closes its journal at the end.

    Args:
        kind: the class whose `async with` this is, for messages: "Server".
        label: the name of what is driven.
    """

    def __init__(self, kind: str, label: str, driver: Driver[Any], journal: Journal) -> None:
        self._kind = kind
        self._label = label
        self._driver = driver
        self._journal = journal
        self._tasks: TaskGroup | None = None

    async def begin(self) -> None:
        """Begin to start, and return at once."""
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        tasks.start_soon(self._driver.run, name=f"{self._kind.lower()} {self._label}")
        self._driver.post(Start())

    async def end(self, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Ask it to stop, unless it has ended, and wait for its end; then `close` what else is open. Not to be
        cancelled. An error of the body goes on as it is, not inside a group."""
        assert self._tasks is not None
        try:
            with anyio.CancelScope(shield=True):
                if not self._driver.over:
                    self._driver.post(Stop())
                    await self._driver.ended()
                if close is not None:
                    await close()
        finally:
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                self._journal.close()

    def check_begun(self) -> None:
        """Raises `StokerError` where somebody would wait for a start that nobody has asked for."""
        if self._tasks is None and not self._driver.over:
            raise StokerError(
                f"{self._kind.lower()} {self._label!r} was not started: use it inside `async with {self._kind}(...)`"
            )
