"""A server made of sockets that sends what a test says, and remembers what it was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    connection: int
    """Numbers the connections, from 0."""
    number: int
    """Numbers the requests of one connection, from 0."""
    line: str
    headers: dict[str, str]
    body: bytes


Replies = Callable[[Asked], bytes]


@dataclass
class Peer:
    """A server, and what it has seen."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    ended: dict[int, threading.Event] = field(default_factory=dict)
    """Of each connection: whether its client has closed it, or we."""


@contextmanager
def serving(reply: Replies, *, most: int = 10_000) -> Iterator[Peer]:
    """A server that sends what `reply` gives, and closes each connection after so many without a word."""

    def serve(there: socket.socket, connection: int) -> None:
        with suppress(OSError), there, there.makefile("rb") as lines:
            for number in range(most):
                line = lines.readline().decode()
                if not line:
                    break
                headers: dict[str, str] = {}
                while (text := lines.readline().decode().strip()) != "":
                    key, _, value = text.partition(":")
                    headers[key.lower()] = value.strip()
                body = lines.read(int(headers.get("content-length", 0)))
                peer.asked.append(Asked(connection, number, line.strip(), headers, body))
                there.sendall(reply(peer.asked[-1]))
        peer.ended[connection].set()

    def accept() -> None:
        while True:
            try:
                there, _ = listener.accept()
            except OSError:
                return
            connection = len(peer.ended)
            peer.ended[connection] = threading.Event()
            threading.Thread(target=serve, args=(there, connection), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Peer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield peer
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer(body: bytes = b"{}", *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
