"""Who may see the live page: this user's browser on this host, and nothing that a foreign page has it do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from lifecycle.errors import StokerError

NAMES = ("127.0.0.1", "localhost", "::1")
"""Hosts in the address of the page. Any other name leads here by DNS only, that is by somebody's trick (rebinding). The
port may be another one: that of a tunnel."""
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""proc_net(5): a row for each socket, with the ports in hexadecimal and the uid of its owner."""


_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]@]+))(?::[0-9]*)?")


class Refused(StokerError):
    """A request that the page does not answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_request(method: str, host: str, site: str) -> None:
    """Raises `Refused` for whatever is no plain look from a page of this one's own.

    Args:
        method: of HTTP.
        host: the `Host` header.
        site: the `Sec-Fetch-Site` header, by which browsers tell whose page asks; empty where there is none.
    """
    if method not in ("GET", "HEAD"):
        raise Refused(405, f"{method} is not answered: this page only shows")
    if name_of(host) not in NAMES:
        raise Refused(403, f"the host {host!r} is not answered: open the page as http://127.0.0.1 or http://localhost")
    if site in ("cross-site", "same-site"):
        raise Refused(403, "another page may not ask this one")


def name_of(host: str) -> str:
    """The host in a `Host` header, without its port (RFC 9110, 7.2).

    >>> [name_of(each) for each in ("LOCALHOST:80", "[::1]:8265", "127.0.0.1", "::1", "a.b:c:1")]
    ['localhost', '::1', '127.0.0.1', '', '']
    """
    found = _HOST.fullmatch(host.strip().lower())
    return (found["six"] or found["name"]) if found else ""


def check_peer(theirs: int, ours: int) -> None:
    """Raises `Refused` unless the connection from port `theirs` to port `ours`, both of this host, is this user's or
    root's (a tunnel's): on a machine that many share, loopback is everybody's."""
    owners = owners_of(_rows(), theirs, ours)
    if not owners or not owners <= {os.getuid(), 0}:
        raise Refused(403, "this page is for the user whose command shows it")


def owners_of(rows: Iterable[str], theirs: int, ours: int) -> set[int]:
    """The uids that own the far end of a connection, from the rows of the kernel's table.

    >>> row = "  3: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 123 1"
    >>> owners_of([row], 40000, 8080), owners_of([row], 8080, 40000)
    ({1000}, set())
    """
    near, far = f":{theirs:04X}", f":{ours:04X}"
    found = set()
    for row in rows:
        words = row.split()
        if len(words) > 7 and words[1].endswith(near) and words[2].endswith(far):
            found.add(int(words[7]))
    return found


def _rows() -> Iterable[str]:
    for name in TABLES:
        try:
            with open(name, encoding="ascii") as table:
                yield from table
        except OSError:
            continue
