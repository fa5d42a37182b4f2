"""What a server needs from the machine it runs on, as narrow protocols.

The activities (`lifecycle.activities`) talk to these and to nothing else, so the same activities run against real
processes and ports (`lifecycle.resources.local.LocalHost`) and, on virtual time, against simulated ones
(`lifecycle.testing.SimulatedHost`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from lifecycle.adapter import Command, CompileCache
from lifecycle.diagnosis import Exit


@dataclass(frozen=True)
class Answer:
    """An HTTP answer to a probe."""

    status: int
    body: Any
    """The JSON value, or the text if it is not JSON."""


NOTHING: Mapping[str, str] = MappingProxyType({})
ASK_TIMEOUT = 60.0
"""Seconds that an engine's interpreter has to answer: importing vLLM takes 5 s here, and far more from a cold disk."""


class NoAnswer(Exception):
    """A probe got no HTTP answer: refused, reset, timed out. `refused` tells a closed port from a silent one."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Prober(Protocol):
    """Asks one server questions, at its literal address, never through a proxy, with its key if it has one."""

    async def get(self, path: str, timeout: float) -> Answer:
        """GET `path`. Raises `NoAnswer`."""
        ...

    async def post(self, path: str, payload: Mapping[str, Any], timeout: float) -> Answer:
        """POST `payload` as JSON. Raises `NoAnswer`."""
        ...

    async def listening(self) -> bool:
        """Whether anything accepts connections there: far cheaper than a request."""
        ...

    async def aclose(self) -> None: ...


class HeldPorts(Protocol):
    """Ports leased (against other instances of Stoker) and held (against everybody else)."""

    numbers: tuple[int, ...]
    """The HTTP port first, then the extra ones."""

    def let_go(self) -> None:
        """Close the holding sockets, keep the leases. Idempotent."""
        ...

    def release(self) -> None:
        """Let go, and give the leases back. Idempotent."""
        ...


class CompileLock(Protocol):
    """The right to build one compile cache."""

    def complete(self) -> None:
        """Mark the cache as complete, so that others skip the lock. Idempotent."""
        ...

    def release(self) -> None:
        """Give the right back. Idempotent."""
        ...


@dataclass(frozen=True)
class Holder:
    """Who builds a compile cache."""

    host: str
    pid: int
    since: float
    """Unix seconds."""


class DeviceMemory(Protocol):
    """What the GPUs of a server held before it was started."""

    async def back(self, limit: float) -> bool:
        """Wait until no more is held than then; False if that has not come within `limit` seconds."""
        ...

    def holders(self, ours: frozenset[int]) -> tuple[str, ...]:
        """Who holds memory of these GPUs now, besides the processes `ours`: names, pids and sizes, in words."""
        ...


@dataclass(frozen=True)
class Spawn:
    """All that is needed to start one attempt of a server."""

    command: Command
    log: Path
    log_limit: int
    """Bytes kept of the log: its beginning and its end."""
    label: str
    state_dir: Path
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Never to be seen in the log."""


class Process(Protocol):
    """A server's whole process tree, under a keeper. Nothing of it outlives its manager."""

    pid: int
    """Of the server's main process."""
    log: Path

    async def exited(self) -> Exit:
        """Return as soon as the main process has ended, however it did. Can be awaited many times and by many."""
        ...

    def lines(self) -> AsyncIterator[str]:
        """Log lines as they come, decoded and split; ends when the output does. One reader. Never raises for any
        bytes. A slow reader loses lines here, never in the log file."""
        ...

    def pids(self) -> frozenset[int]:
        """Every process of the tree that is alive now."""
        ...

    async def end(self, grace: float) -> None:
        """SIGTERM to the main process only; SIGKILL to the tree after `grace` seconds or when the main process is gone.
        Returns when no process of the tree is left. `grace` 0 is SIGKILL at once. Can be called again with less."""
        ...

    def tail(self, count: int) -> list[str]:
        """The last `count` lines of the log, from the file."""
        ...

    def keep(self, sake: Keepsake | None, seconds: float) -> None:
        """From now on, should its manager die, its keeper keeps it for so many seconds for whoever adopts it, who finds
        `sake`. None: its keeper ends it at once then, as it does unless told otherwise. Raises `OSError` if the
        keepsake cannot be written; never for None."""
        ...


@dataclass(frozen=True)
class Keepsake:
    """What a manager leaves of a server for the one that comes after it: a snapshot, and what it was started with."""

    state: str
    """Healthy, or Asleep if it may sleep."""
    pid: int
    """Of the main process."""
    ports: tuple[int, ...]
    """The HTTP port first, then the extra ones."""
    log: str
    settings: Mapping[str, str]
    """A digest of each setting that it was started with."""
    model: str = ""
    """The name that it reports."""


@dataclass(frozen=True)
class Kept:
    """A server whose manager has died and whose keeper keeps it."""

    keepsake: Keepsake
    manager: int
    """The pid that the dead one had."""
    pids: frozenset[int]
    """Every process of its tree that is alive."""
    record: Any = field(default=None, repr=False)
    """The host's own."""


class Host(Protocol):
    """A machine on which servers are started."""

    async def ask(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
        """Run a short process and return its standard output. Raises `LaunchError` if it cannot be run, ends with
        another code than 0, or takes longer than `timeout` seconds; then, and when cancelled, it is killed."""
        ...

    async def compile_lock(
        self, cache: CompileCache, waiting: Callable[[Holder | None], None]
    ) -> CompileLock | None:
        """Wait for the right to build a cache. None as soon as the cache is complete: no need to wait.
        `waiting` is told who builds it (None: not known), again whenever that changes. Cancellable at any moment
        without leaving the lock held."""
        ...

    def void_cache(self, cache: CompileCache) -> None:
        """A cache has proved to be broken: take back the mark that says it is complete, and put its files away."""
        ...

    def device_memory(self, env: Mapping[str, str] = NOTHING) -> DeviceMemory | None:
        """What the GPUs hold now that a process with these variables, beside our own, would see: others are none of its
        business. None where there are none, or none that can be asked."""
        ...

    def local_weights(self, model: str, revision: str, environ: Mapping[str, str | None]) -> Path | None:
        """Where the weights of a hub model lie on this disk already, for a process with these variables; None if they
        do not."""
        ...

    def oom_kills(self) -> int | None:
        """Processes of our control group that the kernel has killed for want of memory, so far. None if unknown."""
        ...

    async def hold_ports(
        self, address: str, wanted: int | None, count: int, derived: Sequence[int] = ()
    ) -> HeldPorts:
        """Lease and hold `count` ports on `address`; the first is `wanted` unless that is None. The ports at the
        distances `derived` from the first are held too, and not counted.
        Raises `PortTaken` if `wanted`, or one derived from it, is somebody else's."""
        ...

    def lease_ports(self, numbers: Sequence[int], derived: Sequence[int] = ()) -> HeldPorts:
        """Lease ports on which a server that was found listens, and those at the distances `derived` from the first.
        Raises `PortTaken` if somebody else has leased one."""
        ...

    async def find_kept(self, label: str) -> Kept | None:
        """The server of this name whose manager has died and whose keeper keeps it; None if there is none. Raises
        `StokerError` if another manager tends one, or if several are kept."""
        ...

    async def adopt(self, kept: Kept) -> Process:
        """Become the manager of a server that was found. Raises `StokerError` if it has gone, or if somebody else has
        become that. Cancelled half way, or killed, it leaves the server with its keeper."""
        ...

    async def spawn(self, what: Spawn) -> Process:
        """Start a server under a keeper. Raises `LaunchError`. Cancelled half way, it leaves nothing behind."""
        ...

    def prober(self, base_url: str, api_key: str | None) -> Prober: ...

    def strangers(self, address: str, port: int, ours: frozenset[int]) -> frozenset[int] | None:
        """None if somebody listens on `port` of `address` and every such socket belongs to one of the processes `ours`.
        Otherwise the pids of the others, as far as this user can see them: empty if it cannot, or if nobody listens."""
        ...

    def attempt_log(self, label: str, attempt: int) -> Path:
        """A fresh file for an attempt's log, never one that exists."""
        ...

    @property
    def state_dir(self) -> Path: ...


def base_url(host: str, port: int) -> str:
    """The URL at which a server on `host` is asked: the literal address; a wildcard is asked on loopback."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
