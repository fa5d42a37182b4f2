"""A manager for tests that kill it. A script: `manager.py SETTINGS`, a JSON object for `ServerConfig`.

It runs one server, prints each journal record as a line of JSON, and drains on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys

import anyio
import msgspec

from lifecycle.config import load_config
from lifecycle.journal import Record
from lifecycle.server import Server
from lifecycle.server_facts import Stop


def tell(record: Record) -> None:
    print(msgspec.json.encode(record).decode(), flush=True)


async def stop_on_sigterm(server: Server) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            server.driver.post(Stop())


async def main() -> None:
    config, adapter = load_config(**json.loads(sys.argv[1]))
    async with anyio.create_task_group() as group:
        server = Server(config, adapter=adapter, listener=tell)
        group.start_soon(stop_on_sigterm, server)
        async with server:
            await server.ended()
        group.cancel_scope.cancel()


anyio.run(main)
