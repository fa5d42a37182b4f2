"""A short process that is asked something: its standard output, or an error that says what it said."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import anyio

from lifecycle.errors import LaunchError
from lifecycle.resources.log import split

LAST_WORDS = 5
"""Lines of standard error that an error message repeats."""


async def ask(argv: Sequence[str], *, env: Mapping[str, str], timeout: float) -> str:
    """See `lifecycle.host.Host.ask`. The process has a session of its own, and all of that is killed if it is not
    waited for to its end."""
    try:
        process = await anyio.open_process(
            list(argv), stdin=subprocess.DEVNULL, env={**os.environ, **env}, start_new_session=True
        )
    except OSError as error:
        raise LaunchError(f"{argv[0]} cannot be run: {error.strerror}") from None
    said: list[bytes] = []
    errors: list[bytes] = []
    try:
        with anyio.move_on_after(timeout) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_read, process.stdout, said)
                group.start_soon(_read, process.stderr, errors)
            await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()
    if scope.cancelled_caught:
        raise LaunchError(f"{argv[0]} has not answered within {timeout:g} s")
    if process.returncode:
        words = " | ".join(split(b"".join(errors))[-LAST_WORDS:])
        raise LaunchError(f"{argv[0]} ended with code {process.returncode}: {words or 'it said nothing'}")
    return b"".join(said).decode("utf-8", "replace")


async def _read(stream: anyio.abc.ByteReceiveStream | None, into: list[bytes]) -> None:
    assert stream is not None
    async for data in stream:
        into.append(data)
