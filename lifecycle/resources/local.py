"""This machine: the `lifecycle.host.Host` that production uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
from platformdirs import user_state_path

from lifecycle.adapter import CompileCache
from lifecycle.config import ServerConfig
from lifecycle.host import (
    ASK_TIMEOUT,
    NOTHING,
    CompileLock,
    DeviceMemory,
    HeldPorts,
    Holder,
    Kept,
    Prober,
    Process,
    Spawn,
)
from lifecycle.resources import cgroup, compile_lock, gpus, ports, weights
from lifecycle.resources.ask import ask
from lifecycle.resources.log import attempt_log
from lifecycle.resources.private import lease_dir as lease_dir
from lifecycle.resources.private import private as private
from lifecycle.resources.process import spawn
from lifecycle.resources.reap import find_kept, reap
from lifecycle.resources.takeover import adopt


class LocalHost:
    """Ports, locks, processes and probes of this machine, with folders that are private to this user.

    Args:
        state_dir: records of servers, compile locks. Default: the user's state folder for "stoker".
        log_dir: logs of attempts. Default: `logs` in `state_dir`.
    """

    def __init__(self, state_dir: Path | None = None, log_dir: Path | None = None) -> None:
        self._state = (state_dir or user_state_path("stoker", appauthor=False)).absolute()
        self._logs = (log_dir or self._state / "logs").absolute()
        self._reaped = False

    @classmethod
    def of(cls, config: ServerConfig) -> LocalHost:
        """With the folders that a configuration names."""
        return cls(*(Path(text) if text else None for text in (config.state_dir, config.log_dir)))

    @property
    def state_dir(self) -> Path:
        """See `lifecycle.host.Host`."""
        return private(self._state)

    async def ask(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
        """See `lifecycle.host.Host`."""
        return await ask(argv, env=env, timeout=timeout)

    async def compile_lock(
        self, cache: CompileCache, waiting: Callable[[Holder | None], None] = lambda holder: None
    ) -> CompileLock | None:
        """See `lifecycle.host.Host`."""
        return await compile_lock.acquire(cache, self.state_dir, waiting=waiting)

    def void_cache(self, cache: CompileCache) -> None:
        """See `lifecycle.host.Host`."""
        compile_lock.void(cache, self.state_dir)

    def device_memory(self, env: Mapping[str, str] = NOTHING) -> DeviceMemory | None:
        """See `lifecycle.host.Host`."""
        return gpus.mark({**os.environ, **env})

    def local_weights(self, model: str, revision: str, environ: Mapping[str, str | None]) -> Path | None:
        """See `lifecycle.host.Host`."""
        try:
            found = weights.in_cache(model, revision, environ)
        except (OSError, ValueError):
            return None
        return found.path if found is not None else None

    def oom_kills(self) -> int | None:
        """See `lifecycle.host.Host`."""
        return cgroup.oom_kills()

    async def hold_ports(
        self, address: str, wanted: int | None, count: int, derived: Sequence[int] = ()
    ) -> HeldPorts:
        """See `lifecycle.host.Host`. What dead managers left behind is ended first: it may sit on the very port."""
        if not self._reaped:
            await anyio.to_thread.run_sync(reap, self.state_dir)
            self._reaped = True
        return ports.hold_ports(address, wanted, count, lease_dir(), derived)

    def lease_ports(self, numbers: Sequence[int], derived: Sequence[int] = ()) -> HeldPorts:
        """See `lifecycle.host.Host`."""
        family = (*numbers, *(numbers[0] + distance for distance in derived))
        return ports.lease_ports(family, len(numbers), lease_dir())

    async def find_kept(self, label: str) -> Kept | None:
        """See `lifecycle.host.Host`."""
        return await anyio.to_thread.run_sync(find_kept, self.state_dir, label)

    async def adopt(self, kept: Kept) -> Process:
        """See `lifecycle.host.Host`."""
        return await adopt(kept)

    async def spawn(self, what: Spawn) -> Process:
        """See `lifecycle.host.Host`."""
        return await spawn(what)

    def prober(self, base_url: str, api_key: str | None) -> Prober:
        """See `lifecycle.host.Host`."""
        from lifecycle.resources.probes import HttpProber

        return HttpProber(base_url, api_key)

    def strangers(self, address: str, port: int, ours: frozenset[int]) -> frozenset[int] | None:
        """See `lifecycle.host.Host`."""
        return ports.strangers(address, port, ours)

    def attempt_log(self, label: str, attempt: int) -> Path:
        """See `lifecycle.host.Host`."""
        return attempt_log(self._logs, label, attempt)
