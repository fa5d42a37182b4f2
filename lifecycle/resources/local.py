"""This machine: the `lifecycle.host.Host` that production uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
from platformdirs import user_state_path

from lifecycle.adapter import CompileCache
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.host import ASK_TIMEOUT, NOTHING, CompileLock, DeviceMemory, HeldPorts, Holder, Prober, Process, Spawn
from lifecycle.resources import cgroup, compile_lock, gpus, ports, weights
from lifecycle.resources.ask import ask
from lifecycle.resources.log import attempt_log
from lifecycle.resources.process import spawn
from lifecycle.resources.reap import reap


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


def lease_dir() -> Path:
    """Where port leases lie: one folder for each user and host, whatever TMPDIR and the state folder are, since ports
    are the host's."""
    runtime = Path(f"/run/user/{os.getuid()}")
    parent = runtime / "stoker" if os.access(runtime, os.W_OK) else Path(f"/tmp/stoker-{os.getuid()}")
    return private(private(parent) / "leases")


def private(folder: Path) -> Path:
    """Make a folder that only this user can open. Raises `ConfigError` if it is another user's or cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid != os.getuid():
            raise ConfigError(f"{folder} belongs to user {found.st_uid}; set state_dir to a folder of your own")
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}; set state_dir to another folder") from None
    return folder
