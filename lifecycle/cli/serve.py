"""`stoker serve`: keep one server healthy until it is told to stop."""

from __future__ import annotations

import argparse

import anyio
import msgspec

from lifecycle.adapter import Adapter
from lifecycle.cli.say import put, stamped
from lifecycle.cli.settings import collect
from lifecycle.cli.watch import Narrator, attended, exit_code_of, tell_failure
from lifecycle.config import ServerConfig
from lifecycle.errors import StartFailed
from lifecycle.journal import Kind, Record
from lifecycle.server import Server

PHASE_PAUSE = 10.0
"""Seconds between two lines about one phase of a start."""


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0 stopped as asked, 1 given up, 130 after a second signal."""
    config, adapter, _ = collect(args)
    return anyio.run(_serve, config, adapter, args.journal, args.json)


async def _serve(config: ServerConfig, adapter: Adapter, journal: str | None, as_json: bool) -> int:
    narrate = Narrator(stamped, stamped, pause=PHASE_PAUSE)

    def listen(record: Record) -> None:
        if as_json:
            put(msgspec.json.encode(record).decode())
        else:
            narrate(record)
        if record.kind is Kind.TRANSITION and record.after == "Healthy":
            url = {"kind": "url", "server": record.server, "url": server.url}
            put(msgspec.json.encode(url).decode() if as_json else server.url)

    server = Server(config, adapter=adapter, journal=journal, listener=listen)
    async with server, attended(server, anyio.Event(), stamped) as signals:
        ended = await server.ended()
    if len(signals) > 1:
        return exit_code_of(signals)
    if ended == "Failed" and server.diagnosis is not None:
        return tell_failure(StartFailed(server.diagnosis))
    return 0
