"""A hundred servers in one manager."""

from __future__ import annotations

import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from benchmarks.fakes import config
from benchmarks.figures import Figure
from lifecycle.server import Server
from tests.processes.trees import processes_named

SERVERS = 100


def measure() -> list[Figure]:
    before = os.times()
    with tempfile.TemporaryDirectory(prefix="stoker-many-") as folder:
        healthy = anyio.run(_run, Path(folder))
        left = processes_named(folder)
    after = os.times()
    spent = after.user + after.system - before.user - before.system
    return [
        Figure(f"{SERVERS} servers in one manager, healthy", healthy, "", SERVERS, at_least=True),
        Figure("processes left", len(left), "", 0),
        Figure("CPU of the manager, from start to stop", spent, "s", 10),
    ]


async def _run(folder: Path) -> int:
    """How many have become healthy and have answered."""
    answered = 0

    async def ask(server: Server) -> None:
        nonlocal answered
        await server.complete({"prompt": "Hello", "max_tokens": 1})
        answered += 1

    async with AsyncExitStack() as stack:
        # The folder's name in each command line is how survivors would be found.
        flags = {"say": [str(folder)]}
        servers = [await stack.enter_async_context(Server(config(folder, **flags))) for _ in range(SERVERS)]
        async with anyio.create_task_group() as group:
            for server in servers:
                group.start_soon(ask, server)
        assert {server.state for server in servers} == {"Healthy"}
        async with anyio.create_task_group() as group:
            for server in servers:
                group.start_soon(server.stop)
    return answered
