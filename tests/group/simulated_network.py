"""A network that is not there, on virtual time: connections with latency, cables that are pulled and put back,
resets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute

from lifecycle.group.network import Handler


class SimulatedNetwork:
    """Hosts are reached by name. `latency` gives the seconds that each piece of data takes."""

    def __init__(self, latency: Callable[[], float] = lambda: 0.001) -> None:
        self.latency = latency
        self._listeners: dict[tuple[str, int], tuple[str, Handler, anyio.abc.TaskGroup]] = {}
        self._unplugged: dict[str, anyio.Event] = {}
        self._pipes: list[Pipe] = []

    def of(self, host: str) -> View:
        """The network as one host sees it: a `lifecycle.group.network.Network`."""
        return View(self, host)

    def unplug(self, host: str) -> None:
        """Nothing reaches the host or leaves it until it is plugged in again. Connections stay, as TCP's do."""
        self._unplugged.setdefault(host, anyio.Event())

    def plug(self, host: str) -> None:
        event = self._unplugged.pop(host, None)
        if event is not None:
            event.set()

    def reset(self, host: str) -> None:
        """End every connection of a host at once, on both sides."""
        for pipe in self._pipes:
            if host in (pipe.source, pipe.dest):
                pipe.broken = True
                pipe.ring()

    async def through(self, one: str, other: str) -> None:
        """Return when both are plugged in."""
        while event := self._unplugged.get(one) or self._unplugged.get(other):
            await event.wait()


class View:
    """Implements `lifecycle.group.network.Network` for one host."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(self, host: str, port: int, handler: Handler) -> None:
        async with anyio.create_task_group() as tasks:
            self._network._listeners[host, port] = (self._host, handler, tasks)
            try:
                await anyio.sleep_forever()
            finally:
                del self._network._listeners[host, port]

    async def connect(self, host: str, port: int) -> ByteStream:
        network = self._network
        await anyio.sleep(network.latency())
        await network.through(self._host, host)
        found = network._listeners.get((host, port))
        if found is None:
            raise ConnectionRefusedError(f"nobody listens on port {port} of {host}")
        there, handler, tasks = found
        out, back = Pipe(network, self._host, there), Pipe(network, there, self._host)
        network._pipes += [out, back]
        tasks.start_soon(handler, End(back_in=out, out=back))
        return End(back_in=back, out=out)


class Pipe:
    """One direction of a connection: pieces arrive in order, each after its latency, none through a pulled cable."""

    def __init__(self, network: SimulatedNetwork, source: str, dest: str) -> None:
        self.network = network
        self.source = source
        self.dest = dest
        self.broken = False
        self.finished = False
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._turn = anyio.Event()

    def put(self, piece: bytes) -> None:
        last = self._pieces[-1][0] if self._pieces else 0.0
        self._pieces.append((max(last, anyio.current_time() + self.network.latency()), piece))
        self.ring()

    def finish(self) -> None:
        self.put(b"")

    async def get(self) -> bytes:
        """The next piece; empty at the end."""
        while True:
            if self.broken:
                raise anyio.BrokenResourceError
            if self.finished:
                return b""
            if not self._pieces:
                await self._turn.wait()
                continue
            at = self._pieces[0][0]
            if at > anyio.current_time():
                with anyio.move_on_after(at - anyio.current_time()):
                    while not self.broken:
                        await self._turn.wait()
                continue
            with anyio.CancelScope():
                await self.network.through(self.source, self.dest)
            if self.broken or not self._pieces:
                continue
            _, piece = self._pieces.popleft()
            self.finished = not piece
            return piece

    def ring(self) -> None:
        self._turn.set()
        self._turn = anyio.Event()


class End(ByteStream):
    """One end of a connection."""

    def __init__(self, *, back_in: Pipe, out: Pipe) -> None:
        self._in = back_in
        self._out = out
        self._rest = b""
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._closed:
            raise anyio.ClosedResourceError
        await anyio.lowlevel.checkpoint()
        piece = self._rest or await self._in.get()
        if not piece:
            raise anyio.EndOfStream
        piece, self._rest = piece[:max_bytes], piece[max_bytes:]
        return piece

    async def send(self, item: bytes) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await anyio.lowlevel.checkpoint()
        if self._out.broken:
            raise anyio.BrokenResourceError
        self._out.put(bytes(item))

    async def send_eof(self) -> None:
        self._out.finish()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._out.finish()
        await anyio.lowlevel.checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {
            SocketAttribute.local_address: lambda: ("127.0.0.1", 1),
            SocketAttribute.remote_address: lambda: ("127.0.0.1", 2),
        }
