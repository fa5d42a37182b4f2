"""Commands and webhooks that are called when a server, group or fleet comes to a state.

    async with Hooks(hooks_of({"Failed": "https://example.org/alarm"})) as hooks:
        async with Server(config, listener=hooks) as server:
            ...

A hook gets JSON, on standard input or as the body of a POST: `server`, `chart`, `state`, `before`, `event`, `attempt`,
`time`, `pid`, `port`, `log`, `host`, `manager`, `diagnosis` (what went wrong last, until it is Healthy again), and all
that in a line, `text`. Calls of one hook come one after the other, in order; those of different hooks do not wait for
each other, and no server waits for any.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from lifecycle.journal import Kind, Record
from lifecycle.operate.hook import Call, Hook, call, masked
from lifecycle.secrets import mask
from lifecycle.story import found_in, why_of

log = logging.getLogger("stoker.hooks")

MOST_WAITING = 100
"""Calls of one hook that wait for their turn; later ones are dropped, and that is logged. A server that fails all the
time would otherwise fill the memory of a manager whose hook hangs."""


class Hooks:
    """A journal listener that calls hooks, inside its `async with`, which must be around that of the server.

    Args:
        hooks: see `lifecycle.operate.hook.hooks_of`.
        timeout: seconds that one call may take. At the end, what is left of all of them has so long together.
        secrets: texts that no hook is told; see `lifecycle.secrets.known_secrets`.
        run: calls one hook: what went wrong, or nothing.
    """

    def __init__(
        self,
        hooks: Iterable[Hook],
        *,
        timeout: float = 10.0,
        secrets: Iterable[str] = (),
        run: Callable[[Hook, Call, float], Awaitable[str]] = call,
    ) -> None:
        self._timeout = timeout
        self._secrets = tuple(secrets)
        self._run = run
        self._lines = tuple(_Line(hook) for hook in hooks)
        self._charts: dict[str, str] = {}
        self._found: dict[str, dict[str, Any]] = {}
        """What went wrong last with each server that is not Healthy since."""
        self._group: TaskGroup | None = None
        self._last: anyio.CancelScope | None = None
        self._hurried = False

    def __call__(self, record: Record) -> None:
        """Take a record of a journal."""
        if record.kind is Kind.BEGIN:
            self._charts[record.server] = str(record.detail.get("chart") or "")
        if record.kind is Kind.BEGIN or record.after == "Healthy":
            self._found.pop(record.server, None)
        if record.kind is not Kind.TRANSITION:
            return
        if found := found_in(record):
            self._found[record.server] = dict(found)
        chart = self._charts.get(record.server, "")
        wanted = [line for line in self._lines if line.hook.wants(record.after or "", chart)]
        if wanted:
            told = Call(masked(payload_of(record, chart, self._found.get(record.server)), self._secrets))
            for line in wanted:
                line.put(told)

    def hurry(self) -> None:
        """Nobody wants to wait any more: at the end, end what still runs at once."""
        self._hurried = True
        if self._last is not None:
            self._last.cancel()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        for line in self._lines:
            self._group.start_soon(self._work, line)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        for line in self._lines:
            line.inlet.close()
        wait = 0 if self._hurried else self._timeout
        with anyio.move_on_after(wait, shield=True) as self._last:
            for line in self._lines:
                await line.through.wait()
        self._group.cancel_scope.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            for line in self._lines:
                line.close()

    async def _work(self, line: _Line) -> None:
        async for told in line.outlet:
            line.busy = True
            try:
                wrong = await self._run(line.hook, told, self._timeout)
            except Exception as error:  # ours; the other calls go on
                wrong = f"{type(error).__name__}: {error}"
            line.busy = False
            if wrong:
                text = mask(wrong, (*self._secrets, *filter(None, (line.hook.url,))))
                log.warning("%s, for %s: %s", line.hook.name, told.payload["text"], text)
        line.through.set()


class _Line:
    """The calls of one hook that wait for their turn."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.inlet: MemoryObjectSendStream[Call]
        self.outlet: MemoryObjectReceiveStream[Call]
        self.inlet, self.outlet = anyio.create_memory_object_stream[Call](MOST_WAITING)
        self.through = anyio.Event()
        """No call will come any more, and all have been made."""
        self.busy = False
        """A call is being made."""

    def put(self, told: Call) -> None:
        try:
            self.inlet.send_nowait(told)
        except anyio.WouldBlock:
            log.warning("%s: %d calls wait already; dropped: %s", self.hook.name, MOST_WAITING, told.payload["text"])
        except anyio.ClosedResourceError:
            log.warning("%s: after the end; dropped: %s", self.hook.name, told.payload["text"])

    def close(self) -> None:
        """Nobody works on it any more."""
        left = self.outlet.statistics().current_buffer_used + self.busy
        self.outlet.close()
        if left:
            log.warning("%s: %d calls were not made to their end: the time was over", self.hook.name, left)


def payload_of(record: Record, chart: str, found: dict[str, Any] | None) -> dict[str, Any]:
    """What a hook is told of a transition."""
    why = why_of(record) or (f"{found.get('summary', '')} [{found.get('cause', '')}]" if found else "")
    return {
        "text": f"{record.server}: {record.before} → {record.after}" + (f": {why}" if why else ""),
        "server": record.server,
        "chart": chart,
        "state": record.after,
        "before": record.before,
        "event": record.event,
        "attempt": record.attempt,
        "time": record.time,
        "pid": record.pid,
        "port": record.port,
        "log": record.log or (found or {}).get("log") or None,
        "host": socket.gethostname(),
        "manager": os.getpid(),
        "diagnosis": found,
    }
