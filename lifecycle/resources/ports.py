"""Ports: leased against other instances of Stoker, held against everybody else, and whoever listens on one named.

A held port is a socket bound with SO_REUSEADDR and SO_REUSEPORT that does not listen. Linux lets a server of the same
user bind the same port beside it if that server sets either option too, never gives the port away by itself, and sends
connections only to sockets that listen.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from lifecycle.errors import PortTaken

TRIES = 200
"""Ports tried before giving up on finding a free one."""
HIGHEST_PORT = 65535
NOBODY_SEEN = "another process"
LEASED = "another server of this user's Stoker, which does not listen yet"
LISTEN = "0A"  # the state TCP_LISTEN in /proc/net/tcp, proc(5)


@dataclass
class Held:
    """Ports that are leased and held. Implements `lifecycle.host.HeldPorts`."""

    numbers: tuple[int, ...]
    _sockets: list[socket.socket] = field(repr=False)
    _leases: list[FileLock] = field(repr=False)

    def let_go(self) -> None:
        """See `lifecycle.host.HeldPorts`."""
        while self._sockets:
            self._sockets.pop().close()

    def release(self) -> None:
        """See `lifecycle.host.HeldPorts`."""
        self.let_go()
        while self._leases:
            self._leases.pop().release()


def hold_ports(
    address: str, wanted: int | None, count: int, lease_dir: Path, derived: Sequence[int] = ()
) -> Held:
    """Lease and hold `count` ports on `address`, the first of them `wanted` unless that is None.

    The ports at the distances `derived` from the first are held as well; `numbers` does not list them. Raises
    `PortTaken`, naming the holder, if `wanted` or one derived from it is somebody else's, and `OSError` if `address`
    is not ours.
    """
    held = _hold_family(address, wanted, lease_dir, derived) if derived else Held((), [], [])
    try:
        if wanted is not None and not held.numbers:
            _hold(held, address, wanted, lease_dir, holder_of)
        tries = 0
        while len(held.numbers) < count:
            tries += 1
            if tries > TRIES:
                raise PortTaken(0, f"others: {TRIES} ports of {address} were tried")
            with contextlib.suppress(PortTaken):
                _hold(held, address, free_port(address), lease_dir, lambda port: NOBODY_SEEN)
    except BaseException:
        held.release()
        raise
    return held


def lease_ports(ports: Sequence[int], shown: int, lease_dir: Path) -> Held:
    """Lease ports on which somebody listens who is ours; the first `shown` are its `numbers`. Raises `PortTaken`."""
    held = Held(tuple(ports[:shown]), [], [])
    for port in ports:
        lease = FileLock(lease_dir / f"port-{port}.lock", mode=0o600, thread_local=False)
        try:
            lease.acquire(blocking=False)
        except Timeout:
            held.release()
            raise PortTaken(port, "another manager of this user's Stoker, which takes over its server too") from None
        held._leases.append(lease)
    return held


def _hold_family(address: str, wanted: int | None, lease_dir: Path, derived: Sequence[int]) -> Held:
    """A port, and those that an engine derives from it."""
    for _ in range(TRIES):
        first = free_port(address) if wanted is None else wanted
        family = Held((), [], [])
        try:
            for port in (first, *(first + distance for distance in derived)):
                if port > HIGHEST_PORT:
                    raise PortTaken(port, "nobody: there is no such port, and the engine derives it from the first")
                _hold(family, address, port, lease_dir, holder_of)
        except PortTaken:
            family.release()
            if wanted is not None:
                raise
            continue
        except BaseException:
            family.release()
            raise
        family.numbers = (first,)
        return family
    raise PortTaken(0, f"others: {TRIES} ports of {address} were tried, with those that the engine derives from them")


def _hold(held: Held, address: str, port: int, lease_dir: Path, name_holder: Callable[[int], str]) -> None:
    lease = FileLock(lease_dir / f"port-{port}.lock", mode=0o600, thread_local=False)
    try:
        lease.acquire(blocking=False)
    except Timeout:
        found = name_holder(port)
        raise PortTaken(port, found if found != NOBODY_SEEN else LEASED) from None
    try:
        if _is_used(address, port):
            raise PortTaken(port, name_holder(port))
        holding = _socket(address)
        try:
            holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holding.bind((address, port))
        except BaseException:
            holding.close()
            raise
    except BaseException as error:
        lease.release()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortTaken(port, name_holder(port)) from None
        raise
    held.numbers = (*held.numbers, port)
    held._sockets.append(holding)
    held._leases.append(lease)


def _is_used(address: str, port: int) -> bool:
    """Whether a socket listens there already. Binding would not tell: with SO_REUSEPORT it succeeds beside one."""
    return bool(_listeners(address, port))


def free_port(address: str) -> int:
    """A port that the kernel finds free now."""
    with _socket(address) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)


def strangers(address: str, port: int, ours: frozenset[int]) -> frozenset[int] | None:
    """See `lifecycle.host.Host`. Other processes are looked at only if ours do not account for every listener."""
    others = _listeners(address, port)
    if not others:
        return frozenset()
    for _, inode in _sockets_of_processes(map(str, sorted(ours))):  # the oldest is the likeliest to listen
        others.discard(inode)
        if not others:
            return None
    return frozenset(pid for pid, inode in _sockets_of_processes() if inode in others)


def _listeners(address: str, port: int) -> set[int]:
    """Inodes of the sockets that a connection to `port` of `address` may reach."""
    return {inode for listening, inode in _listening_sockets(port) if _serves(listening, address)}


def holder_of(port: int) -> str:
    """Who listens on a port, for an error message: name and pid, as far as this user may know."""
    import psutil

    inodes = {inode for _, inode in _listening_sockets(port)}
    for pid, inode in _sockets_of_processes():
        if inode in inodes:
            with contextlib.suppress(psutil.Error):
                return f"{psutil.Process(pid).name()} (pid {pid})"
            return f"pid {pid}"
    return "a process of another user" if inodes else NOBODY_SEEN


def _listening_sockets(port: int) -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """(address, inode) of every TCP socket of this host that listens on `port`, from /proc/net/tcp and tcp6."""
    mark = f":{port:04X} "
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as table:
            for row in table:
                if mark not in row:  # most rows, and quickly: there may be thousands
                    continue
                words = row.split()
                where, _, its_port = words[1].partition(":")
                if words[3] == LISTEN and int(its_port, 16) == port:
                    yield _address(where), int(words[9])


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """/proc/net shows addresses as 32-bit words in host order."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    found = ipaddress.ip_address(raw)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _serves(listening: ipaddress.IPv4Address | ipaddress.IPv6Address, address: str) -> bool:
    """Whether a socket that listens on the one gets connections to the other. `::` takes IPv4 as well, by default."""
    wanted = _literal(address)
    if listening == wanted:
        return True
    if listening.is_unspecified:
        return listening.version == wanted.version or listening.version == 6
    return wanted.is_unspecified and wanted.version == listening.version


def _literal(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that a bind to `address`, a literal or a host's name, binds."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return ipaddress.ip_address(socket.gethostbyname(address))


def _sockets_of_processes(pids: Iterable[str] | None = None) -> Iterator[tuple[int, int]]:
    """(pid, inode) of every socket that processes of this user have open."""
    for name in os.listdir("/proc") if pids is None else pids:
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{fd}")
                    if target.startswith("socket:["):
                        yield int(name), int(target[8:-1])
