"""One address for outsiders before a server that rests at times: who comes while it rests waits, and it is started or
woken for them.

Bytes are passed on as they are. A connection counts as a request in flight from its first byte to its end: engines end
connections that nobody uses after some seconds (uvicorn's and llama.cpp's default is 5). So a drain waits for it, and
nothing is put to rest while somebody waits for an answer, also where an engine says nothing of its work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream, TaskStatus

from lifecycle.errors import Draining, PortTaken, StartFailed, StokerError
from lifecycle.gate import Gate
from lifecycle.host import base_url

CHUNK = 65536
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
"""Whoever was there is not any more."""


class Door:
    """Takes connections at `host` and `port` (None: a free one) for the server behind `gate`."""

    def __init__(self, gate: Gate, host: str, port: int | None) -> None:
        self._gate = gate
        self._host = host
        self._port = port
        self.url = ""
        """The outsiders' URL, without /v1; empty as long as there is none."""

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Take connections until cancelled; started when there are some to be had. Raises `PortTaken`."""
        try:
            listeners = await anyio.create_tcp_listener(local_host=self._host, local_port=self._port or 0)
        except OSError as error:
            raise PortTaken(self._port or 0, f"somebody else ({error.strerror})") from None
        async with listeners:
            self.url = base_url(self._host, listeners.extra(SocketAttribute.local_port))
            task_status.started()
            await listeners.serve(self._take)

    async def _take(self, outsider: SocketStream) -> None:
        async with outsider:
            with suppress(*GONE, Draining, StartFailed):
                first = await outsider.receive(CHUNK)  # who only looks whether somebody listens wakes nobody
                leave = await self._gate.pass_through()
                with anyio.CancelScope() as scope, leave.gate.entered(scope):
                    await self._pass_on(outsider, first, leave.url)

    async def _pass_on(self, outsider: SocketStream, first: bytes, url: str) -> None:
        to = urlsplit(url)
        assert to.hostname is not None
        assert to.port is not None
        async with await anyio.connect_tcp(to.hostname, to.port) as server:
            await server.send(first)
            async with anyio.create_task_group() as group:
                group.start_soon(_pump, outsider, server, self._gate.touch)
                await _pump(server, outsider, self._gate.touch)
                group.cancel_scope.cancel()


@asynccontextmanager
async def opened(door: Door | None) -> AsyncIterator[None]:
    """While the body runs, the door takes connections, if there is one."""
    if door is None:
        yield
        return
    error: BaseException | None = None
    async with anyio.create_task_group() as group:
        await group.start(door.serve)
        try:
            yield
        except StokerError as found:  # as itself, not inside a group
            error = found
        group.cancel_scope.cancel()
    if error is not None:
        raise error


async def _pump(source: ByteReceiveStream, sink: ByteSendStream, moved: Callable[[], None]) -> None:
    with suppress(*GONE):
        while True:
            try:
                data = await source.receive(CHUNK)
            except anyio.EndOfStream:
                if isinstance(sink, SocketStream):
                    await sink.send_eof()
                return
            moved()
            await sink.send(data)
