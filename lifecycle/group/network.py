"""How the hosts of a group reach each other: TCP, behind a protocol that a simulation has too."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from typing import Any, Protocol

import anyio
from anyio.abc import ByteStream

from lifecycle.errors import ConfigError
from lifecycle.resources.ports import holder_of

Handler = Callable[[ByteStream], Coroutine[Any, Any, None]]
LOCAL_NAMES = ("localhost", "ip6-localhost")


class Network(Protocol):
    """Connections between hosts."""

    async def listen(self, host: str, port: int, handler: Handler) -> None:
        """Give each connection that comes to `handler`, in a task of its own, until cancelled.

        `host` is this host's own name or literal address. Raises `ConfigError` if it is not ours, or the port is
        somebody else's.
        """
        ...

    async def connect(self, host: str, port: int) -> ByteStream:
        """Raises `OSError`."""
        ...


class TcpNetwork:
    """The real one."""

    async def listen(self, host: str, port: int, handler: Handler) -> None:
        """See `Network`."""
        address = await bind_address(host)
        try:
            listener = await anyio.create_tcp_listener(local_host=address, local_port=port)
        except OSError as error:
            raise ConfigError(_cannot_listen(host, address, port, error)) from None
        async with listener:
            await listener.serve(handler)

    async def connect(self, host: str, port: int) -> ByteStream:
        """See `Network`."""
        return await anyio.connect_tcp(host, port)


async def bind_address(host: str) -> str:
    """The address on which the head listens. A name that means loopback on the host itself, as many systems have it in
    /etc/hosts (127.0.1.1), means another address elsewhere: then it listens on all. Raises `ConfigError`."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        found = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"the head's name {host!r} means nothing here ({error.strerror}): give its address") from None
    addresses = sorted({str(where[0]) for *_, where in found}, key=lambda text: (":" in text, text))
    if host not in LOCAL_NAMES and all(ip_address(text.partition("%")[0]).is_loopback for text in addresses):
        return "::" if ":" in addresses[0] else "0.0.0.0"
    return addresses[0]


def _cannot_listen(host: str, address: str, port: int, error: OSError) -> str:
    where = f"{host} ({address})" if host != address else host
    if error.errno == 98 or "in use" in str(error):
        return f"port {port} of {where} is taken by {holder_of(port)}: say --head {host}:PORT with another one"
    return (
        f"the head cannot listen on port {port} of {where}: {error.strerror or error}; is this host, of rank 0, the "
        "one that --head names?"
    )
