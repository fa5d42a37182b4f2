"""One connection between two hosts of a group: messages and heartbeats, both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from lifecycle.group.messages import LONGEST, Beat, Message, WireError, decode, encode

FLUSH = 2.0
"""Seconds that the last words of a connection have to get out."""


class Link:
    """Messages over one stream. `run` it; it ends when the connection does.

    Args:
        stream: the connection.
        interval: seconds between two heartbeats.
        timeout: seconds without any message after which the other side counts as lost.
    """

    def __init__(self, stream: ByteStream, *, interval: float, timeout: float) -> None:
        self._stream = stream
        self._received = BufferedByteReceiveStream(stream)
        self._interval = interval
        self._timeout = timeout
        self._waiting: deque[Message] = deque()
        self._more = anyio.Event()
        self.closed = False
        self.local_address = _address(stream, SocketAttribute.local_address)
        """The address of this host that the connection uses."""
        self.remote_address = _address(stream, SocketAttribute.remote_address)

    def send(self, message: Message) -> None:
        """Put a message into the queue and go on. One for a connection that has gone is lost with it."""
        self._waiting.append(message)
        self._more.set()

    async def say(self, message: Message) -> None:
        """Send one message before `run` does it: for the handshake. Raises `WireError` if the connection has gone."""
        try:
            with anyio.fail_after(self._timeout):
                await self._stream.send(encode(message))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError) as error:
            raise WireError(f"the connection was lost ({_why(error)})") from None

    async def receive(self) -> Message:
        """The next message. Raises `WireError` if the connection has gone or nothing has come for `timeout` s."""
        try:
            with anyio.fail_after(self._timeout):
                line = await self._received.receive_until(b"\n", LONGEST)
        except TimeoutError:
            raise WireError(f"nothing was heard of it for heartbeat_timeout = {self._timeout:g} s") from None
        except (anyio.EndOfStream, anyio.IncompleteRead):
            raise WireError("it closed the connection") from None
        except anyio.DelimiterNotFound:
            raise WireError(f"a message is longer than {LONGEST} bytes") from None
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise WireError(f"the connection was lost ({_why(error)})") from None
        return decode(line)

    async def run(self, take: Callable[[Message], None]) -> str:
        """Give every message but heartbeats to `take`, and send what there is to send. Returns why it ended."""
        why = ""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write)
                try:
                    while True:
                        message = await self.receive()
                        if not isinstance(message, Beat):
                            take(message)
                except WireError as error:
                    why = str(error)
                group.cancel_scope.cancel()
        finally:
            self.closed = True
        return why

    async def _write(self) -> None:
        while True:
            with anyio.move_on_after(self._interval):
                await self._more.wait()
            self._more = anyio.Event()
            lines = [encode(message) for message in self._waiting] or [encode(Beat())]
            self._waiting.clear()
            try:
                await self._stream.send(b"".join(lines))
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the reader finds out too, and says so

    async def aclose(self) -> None:
        """Close the connection. Quick, and never raises for one that has gone."""
        self.closed = True
        with anyio.move_on_after(FLUSH, shield=True):
            try:
                await self._stream.aclose()
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


def _address(stream: ByteStream, which: Any) -> str:
    """A literal address without the interface that Linux adds to link-local ones; empty if the other side has gone."""
    try:
        return str(stream.extra(which)[0]).partition("%")[0]
    except OSError:
        return ""


def _why(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
