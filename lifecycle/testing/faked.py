"""An adapter whose engine is the fake server: all else is asked of the adapter that it wraps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lifecycle.adapter import Adapter, Ask, Command, Launch, Phase, Prepared, asks_itself, capabilities_of, prepared_by
from lifecycle.config import ServerConfig
from lifecycle.testing.fake import fake_argv, fake_flags

USUAL = frozenset({"/health", "/v1/models"})
"""What the fake server answers by itself."""


class Faked:
    """Starts the fake server where `adapter` would start its engine: on the same host and port, with the same variables
    and files, under the same model's name, with an answer on each path that Stoker asks.

    Args:
        prepared: what is found before a start; None: what the adapter itself finds.
        attempts: flags of the fake server that are added in the first, second, ... attempt.
    """

    def __init__(
        self, adapter: Adapter, prepared: Prepared | None = None, *, attempts: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._adapter, self._prepared, self._attempts = adapter, prepared, attempts
        self.name, self.capabilities, self.options = adapter.name, adapter.capabilities, adapter.options

    def __getattr__(self, name: str) -> Any:
        if name == "ready" and asks_itself(self._adapter):
            return _nothing_is_missing
        return getattr(self._adapter, name)

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        return await prepared_by(self._adapter, config, ask) if self._prepared is None else self._prepared

    def command(self, launch: Launch) -> Command:
        config, can = launch.config, capabilities_of(self._adapter, launch.config)
        paths = {path.partition("?")[0] for path in (*can.ready_paths, can.liveness_path or "/health")} - USUAL
        argv = fake_argv(
            launch.port,
            host=config.host,
            model=config.served_name or config.model or "fake",
            attempt=launch.attempt,
            routes={path: {"status": 200} for path in paths},
            extra_port=list(launch.extra_ports),
            per_attempt=json.dumps([fake_flags(**more) for more in self._attempts]),
        )
        return replace(self._adapter.command(launch), argv=tuple(argv), cwd=None)

    def phase(self, line: str) -> Phase | None:
        return self._adapter.phase(line)


async def _nothing_is_missing(launch: Launch, ask: Ask) -> str:
    return ""
