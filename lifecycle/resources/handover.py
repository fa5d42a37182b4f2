"""The door of a keeper whose manager has died: another manager comes in by it. Part of the keeper: standard library
only, and of that only what is cheap.

Who comes sends one message with two descriptors: its ends of what joins a keeper to its manager. The first one is let
in and the door is shut, so no two managers ever have one keeper; others are refused, or see the end of their line.
"""

from __future__ import annotations

import os
import sys

try:
    from lifecycle.resources.tree import attempt
except ImportError:  # in a keeper, which has this folder on its path and nothing else
    from tree import attempt  # type: ignore[import-not-found,no-redef]

TYPE_CHECKING = False  # as in `typing`, which would cost a keeper 1 MiB
if TYPE_CHECKING:
    from typing import Any

AF_UNIX, SOCK_STREAM, SOL_SOCKET, SCM_RIGHTS, SO_PEERCRED = 1, 1, 1, 1, 17  # linux/socket.h, asm-generic/socket.h
MANNERS = 1.0
"""Seconds that a visitor has to say what it wants."""
MESSAGE = b"adopt"
INT = 4
"""Bytes of a descriptor, and of each part of `struct ucred` (unix(7)): pid, uid, gid."""


class Door:
    """Made while the manager lives: what must be imported is there then, also if it is being replaced later on."""

    def __init__(self, path: str) -> None:
        import _socket  # not `socket`, which would cost a keeper 1.5 MiB

        self._make = _socket.socket
        self.path = path
        self._listener: Any = None

    @property
    def fd(self) -> int:
        """Readable when somebody knocks; -1 if it is shut."""
        number: int = -1 if self._listener is None else self._listener.fileno()
        return number

    def open(self) -> bool:
        """Whether it could be opened."""
        attempt(os.unlink, self.path)
        try:
            self._listener = self._make(AF_UNIX, SOCK_STREAM)
            self._listener.bind(self.path)
            self._listener.listen(8)
            self._listener.setblocking(False)
        except OSError:
            self.shut()
            return False
        return True

    def shut(self) -> None:
        """Let nobody in. Can be called again."""
        if self._listener is not None:
            attempt(os.unlink, self.path)
            self._listener.close()
            self._listener = None

    def let_in(self) -> tuple[int, int, int] | None:
        """(pid, control, output) of whoever knocks; None if it has gone again, or is not of this user."""
        try:
            number, _ = self._listener._accept()
        except OSError:
            return None
        visitor = self._make(fileno=number)
        try:
            visitor.settimeout(MANNERS)
            said, attached, _, _ = visitor.recvmsg(len(MESSAGE), 64)
            rights = [data for level, kind, data in attached if (level, kind) == (SOL_SOCKET, SCM_RIGHTS)]
            fds = ints(b"".join(rights))
            pid, uid, _ = ints(visitor.getsockopt(SOL_SOCKET, SO_PEERCRED, 3 * INT))
        except OSError:  # also a timeout
            return None
        finally:
            visitor.close()
        if said == MESSAGE and len(fds) == 2 and uid == os.getuid() and pid:
            return pid, fds[0], fds[1]
        for fd in fds:
            attempt(os.close, fd)
        return None


def ints(data: bytes) -> list[int]:
    """C's ints in `data`."""
    return [int.from_bytes(data[at : at + INT], sys.byteorder) for at in range(0, len(data) - INT + 1, INT)]
