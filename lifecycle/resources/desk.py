"""A socket at which a manager says how its servers stand, and is told to end them. Only its user can open it.

One line of JSON is asked and one is answered: `{"ask": "status"}`, or `{"ask": "stop"}` and `{"ask": "kill"}`, which
are answered when they have been passed on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import SocketStream

from lifecycle.decoding import decode
from lifecycle.errors import ConfigError, StokerError
from lifecycle.resources.local import lease_dir, private
from lifecycle.roster import Standing

LONGEST = 4096
"""Bytes of a question."""
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
"""Whoever has asked does not wait for the answer."""
PATIENCE = 5.0
"""Seconds for a manager to answer; one that computes or was stopped may take longer, and is said not to answer."""


@dataclass(frozen=True)
class Status:
    """What a manager says of its servers."""

    manager: int
    """Its pid."""
    servers: tuple[Standing, ...]
    in_flight: int = 0
    """Requests that its servers have now."""
    at: str = ""
    """Where to ask it again."""


def desks_dir() -> Path:
    """Where the sockets are: short, since their paths may have 107 bytes only (unix(7)), and this host's alone."""
    return private(lease_dir().parent / "desks")


async def keep_desk(
    standings: Callable[[], tuple[Standing, ...]],
    in_flight: Callable[[], int],
    stop: Callable[[], object],
    kill: Callable[[], object],
) -> None:
    """Answer until cancelled. Where no socket can be made, the servers do without."""
    async def serve(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(PATIENCE), contextlib.suppress(*GONE):
                asked = _question(await stream.receive(LONGEST))
                if asked == "stop":
                    stop()
                elif asked == "kill":
                    kill()
                told = Status(os.getpid(), standings(), in_flight())
                await stream.send(msgspec.json.encode(asdict(told)) + b"\n")

    try:
        path = desks_dir() / f"{os.getpid()}-{secrets.token_hex(2)}.sock"
        beside = path.with_suffix(".new")
        listener = await anyio.create_unix_listener(beside, mode=0o600)
        beside.rename(path)  # whoever finds it there and is refused knows that its manager has gone
    except (OSError, ConfigError):
        return
    try:
        await listener.serve(serve)
    finally:
        path.unlink(missing_ok=True)
        with anyio.CancelScope(shield=True):
            await listener.aclose()


def _question(data: bytes) -> str:
    try:
        asked = decode(data)
    except msgspec.MsgspecError:
        return ""
    return str(asked.get("ask", "")) if isinstance(asked, Mapping) else ""


def ask(at: Path, question: str = "status") -> Status:
    """Ask a manager. Blocks. Raises `StokerError` if it does not answer, and `FileNotFoundError` or
    `ConnectionRefusedError` if it has gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(PATIENCE)
        line.connect(str(at))
        try:
            line.sendall(msgspec.json.encode({"ask": question}) + b"\n")
            data = b"".join(iter(lambda: line.recv(65536), b""))
            found: dict[str, Any] = decode(data)
            return msgspec.convert({**found, "at": str(at)}, Status)
        except (OSError, msgspec.MsgspecError) as error:
            why = f"manager {at.name.partition('-')[0]} has not answered at {at}: {error}"
            raise StokerError(why) from None


def managers() -> Iterator[Status | StokerError]:
    """What every manager of this user on this host says; an error for one that does not answer. Sockets of those that
    have gone are removed. Blocks."""
    for path in sorted(desks_dir().glob("*.sock")):
        try:
            yield ask(path)
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        except StokerError as error:
            yield error
