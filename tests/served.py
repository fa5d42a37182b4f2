"""Whole servers for tests: the `custom` backend with the fake server, short times, a state folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from lifecycle.config import load_config
from lifecycle.errors import StartFailed
from lifecycle.journal import Kind, Record
from lifecycle.server import Server
from tests.fake import control, fake_command, stats

GUARD = 30.0
"""Seconds after which a test that hangs fails."""
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
QUICK: dict[str, Any] = {"backoff_initial": 0.0, "drain_timeout": 5.0, "terminate_timeout": 10.0}


def make(folder: Path, backend: str, *, journal: Path | None = None, **settings: Any) -> Server:
    """A server of any backend, with short times."""
    values = {"state_dir": str(folder / "state"), **QUICK, **settings}
    config, adapter = load_config(backend, **values)
    return Server(config, adapter=adapter, journal=journal)


def fake(
    folder: Path, flags: Mapping[str, Any] | None = None, *, attempts: Sequence[Mapping[str, Any]] = (), **settings: Any
) -> Server:
    """The fake server under the `custom` backend.

    Args:
        flags: of `fake_server.py`, with `_` for `-`.
        attempts: flags added in the first, second, ... attempt.
        settings: of the server.
    """
    command = fake_command(attempts=attempts, **(flags or {}))
    return make(folder, "custom", **{"command": command, "model": "fake", **settings})


async def healthy(server: Server) -> None:
    """Wait until it is Healthy, but not for ever."""
    with anyio.fail_after(GUARD):
        await server.healthy()


async def given_up(server: Server) -> StartFailed:
    """Start it, wait until it is given up, and return the error that a user gets."""
    async with server:
        with anyio.fail_after(GUARD):
            try:
                await server.healthy()
            except StartFailed as error:
                assert await server.ended() == "Failed"
                return error
    raise AssertionError("the server became healthy")


async def counts(server: Server) -> dict[str, Any]:
    """What the fake server has counted."""
    return await anyio.to_thread.run_sync(stats, server.url)


async def tell(server: Server, path: str, body: Mapping[str, Any]) -> None:
    """Change a running fake server."""
    await anyio.to_thread.run_sync(control, server.url, path, body)


async def until(claim: Callable[[dict[str, Any]], bool], server: Server) -> dict[str, Any]:
    """Ask the fake server until what it has counted fits."""
    with anyio.fail_after(GUARD):
        while not claim(found := await counts(server)):  # noqa: ASYNC110 - a process is not an event
            await anyio.sleep(0.01)
    return found


async def listening(server: Server) -> None:
    """Return when something listens on the port of the server."""
    while not await server.host.prober(server.url, None).listening():  # noqa: ASYNC110 - a process is not an event
        await anyio.sleep(0.01)


def path_of(server: Server) -> list[str]:
    """The states that a server has passed."""
    return [str(record.after) for record in server.journal.records if record.kind is Kind.TRANSITION]


def starts(server: Server) -> list[Record]:
    """The records of its launches: pid, port and log of each attempt."""
    return [record for record in server.journal.records if record.event == "Launched"]
