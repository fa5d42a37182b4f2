"""A manager for tests that kill it. A script: `manager.py SETTINGS`, a JSON object for `ServerConfig`.

It runs one server, prints each journal record as a line of JSON, and drains on SIGTERM. `attach` has it attach;
`dies_at` names a function of `MOMENTS` at whose end (or, with "before ", beginning) it kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import anyio
import msgspec

from lifecycle.config import load_config
from lifecycle.journal import Record
from lifecycle.resources import takeover
from lifecycle.resources.process import KeptProcess
from lifecycle.resources.reap import Leftover
from lifecycle.server import Server
from lifecycle.server_facts import Stop

MOMENTS: dict[str, tuple[Any, str]] = {
    "keepsake": (Leftover, "keep"),
    "told": (KeptProcess, "_tell_keeper"),
    "knock": (takeover, "_knock"),
    "first word": (takeover, "first_word"),
    "record": (Leftover, "started"),
}


def die_at(moment: str) -> None:
    place, name = MOMENTS[moment.removeprefix("before ")]
    original = getattr(place, name)

    def dying(*args: Any) -> Any:
        if moment.startswith("before "):
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(*args)
        if hasattr(found, "__await__"):
            return dying_later(found)
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    async def dying_later(found: Any) -> Any:
        await found
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, name, dying)


def tell(record: Record) -> None:
    print(msgspec.json.encode(record).decode(), flush=True)


async def stop_on_sigterm(server: Server) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            server.driver.post(Stop())


async def main() -> None:
    given = json.loads(sys.argv[1])
    attach, moment = given.pop("attach", False), given.pop("dies_at", "")
    if moment:
        die_at(moment)
    config, adapter = load_config(**given)
    async with anyio.create_task_group() as group:
        server = Server(config, adapter=adapter, listener=tell, attach=attach)
        group.start_soon(stop_on_sigterm, server)
        async with server:
            await server.ended()
        group.cancel_scope.cancel()


anyio.run(main)
