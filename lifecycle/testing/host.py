"""A machine that is not there: `SimulatedHost`. Ports, locks, processes, probes on virtual time; faults on demand."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from lifecycle.adapter import CompileCache
from lifecycle.errors import PortTaken, StokerError
from lifecycle.host import (
    ASK_TIMEOUT,
    NOTHING,
    Answer,
    CompileLock,
    DeviceMemory,
    HeldPorts,
    Holder,
    Kept,
    NoAnswer,
    Prober,
    Process,
    Spawn,
)
from lifecycle.testing.ledger import Hold, Ledger
from lifecycle.testing.process import Life, SimulatedProcess

if TYPE_CHECKING:
    import httpx

LATENCY = 0.001
"""Seconds that an answer takes."""
FIRST_PORT = 30_000
STRANGER = 1
"""Pid of whoever else listens on a port."""


class Turn:
    """What one call of an operation meets: it waits, and then it fails or goes on.

    Args:
        delay: virtual seconds; None: until `go` or `fail` is called.
        error: raised after the wait.
    """

    def __init__(self, delay: float | None = None, error: BaseException | None = None) -> None:
        self.met = False
        """Whether a call has come to it."""
        self._delay = delay
        self._error = error
        self._decided = anyio.Event()

    def go(self) -> None:
        """Let the call go on."""
        self._decided.set()

    def fail(self, error: BaseException) -> None:
        """Let the call raise `error`."""
        self._error = error
        self._decided.set()

    async def take(self) -> None:
        self.met = True
        if self._delay is None:
            await self._decided.wait()
        elif self._delay > 0:
            with anyio.move_on_after(self._delay):
                await self._decided.wait()
        if self._error is not None:
            raise self._error


class SimulatedHost:
    """Implements `lifecycle.host.Host` without a process, a socket or a file.

        host = SimulatedHost([Life(exits=2.0), Life(ready=5.0)])    # the first attempt crashes, the others get ready
        host.plan("spawn", Turn(delay=3.0))                         # the next launch takes three seconds
        async with Server(config, adapter=SimulatedAdapter(), host=host) as server: ...
        assert host.held() == () and not host.ledger.violations

    Run it with `run_virtual`. Operations that can be planned: ask, compile_lock, hold_ports, find_kept, adopt, spawn,
    listening, probe, exited, end, memory; what is not planned takes no time and succeeds. A process listens on the
    first of the held ports that its command line names.

    Args:
        lives: what each process does, in the order of their launch; the last goes on for all later ones.
        endpoint: what an external server does, at any URL whose port is not one of this host's.
    """

    def __init__(self, lives: Iterable[Life] = (), *, endpoint: Life | None = None) -> None:
        self.lives = list(lives) or [Life()]
        self.ledger = Ledger()
        self.processes: list[SimulatedProcess] = []
        self.complete_caches: set[str] = set()
        self.taken_ports: set[int] = set()
        """Ports that somebody else has."""
        self.has_gpus = False
        self.oom_killed: int | None = None
        """What `oom_kills` says."""
        self.reached: list[SimulatedProcess] = []
        """For each request that came through `transport`, the process that it reached."""
        self.on_request: Callable[[SimulatedProcess], None] = lambda process: None
        self.left: SimulatedProcess | None = None
        """A server whose manager has died and whose keeper keeps it, as long as nobody has adopted it."""
        self._plans: dict[str, deque[Turn]] = {}
        self._locks: dict[str, SimulatedLock] = {}
        self._next_port = FIRST_PORT
        self._labels: set[str] = set()
        self._endpoint_life = endpoint
        self._endpoint: SimulatedProcess | None = None

    def plan(self, operation: str, *turns: Turn) -> None:
        """What the next calls of an operation meet, in this order."""
        self._plans.setdefault(operation, deque()).extend(turns)

    def forget_plans(self) -> None:
        """What was planned and has not been met is planned no more."""
        self._plans.clear()

    def change_endpoint(self, life: Life) -> None:
        """From now on the external server does this. Its times count from its next use."""
        self._endpoint_life, self._endpoint = life, None

    async def _meet(self, operation: str) -> None:
        await anyio.lowlevel.checkpoint()
        turns = self._plans.get(operation)
        if turns:
            await turns.popleft().take()

    def held(self) -> tuple[str, ...]:
        """What is held now: locks, leases, sockets and living process trees."""
        processes = [f"process {process.pid}" for process in self.processes if process.alive]
        return (*map(str, self.ledger.open()), *processes)

    @property
    def process(self) -> SimulatedProcess:
        """The latest process."""
        return self.processes[-1]

    @property
    def endpoint(self) -> SimulatedProcess | None:
        """The external server, if there is one. Made at its first use: its times count from there."""
        if self._endpoint is None and self._endpoint_life is not None:
            self._endpoint = SimulatedProcess(STRANGER, Path(), self._endpoint_life, None, self._meet)
        return self._endpoint

    @property
    def state_dir(self) -> Path:
        """See `lifecycle.host.Host`."""
        return Path("/simulated")

    def attempt_log(self, label: str, attempt: int) -> Path:
        """See `lifecycle.host.Host`. No file is made."""
        return self.state_dir / f"{label}-{attempt}.log"

    async def ask(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
        """See `lifecycle.host.Host`. The answer is empty."""
        with anyio.fail_after(timeout):
            await self._meet("ask")
        return ""

    async def compile_lock(
        self, cache: CompileCache, waiting: Callable[[Holder | None], None] = lambda holder: None
    ) -> CompileLock | None:
        """See `lifecycle.host.Host`."""
        await self._meet("compile_lock")
        key = cache.key
        while key not in self.complete_caches:
            holder = self._locks.get(key)
            if holder is None:
                self._locks[key] = lock = SimulatedLock(self, key)
                return lock
            waiting(None)
            await holder.released.wait()
        return None

    def void_cache(self, cache: CompileCache) -> None:
        """See `lifecycle.host.Host`."""
        self.complete_caches.discard(cache.key)

    def device_memory(self, env: Mapping[str, str] = NOTHING) -> DeviceMemory | None:
        """See `lifecycle.host.Host`."""
        return SimulatedMemory(self) if self.has_gpus else None

    def local_weights(self, model: str, revision: str, environ: Mapping[str, str | None]) -> Path | None:
        """See `lifecycle.host.Host`. There are none."""
        return None

    def oom_kills(self) -> int | None:
        """See `lifecycle.host.Host`."""
        return self.oom_killed

    async def hold_ports(
        self, address: str, wanted: int | None, count: int, derived: Sequence[int] = ()
    ) -> HeldPorts:
        """See `lifecycle.host.Host`."""
        await self._meet("hold_ports")
        leased = {hold.name for hold in self.ledger.open("lease")}
        if wanted is not None and (wanted in self.taken_ports or str(wanted) in leased):
            raise PortTaken(wanted, "somebody else")
        numbers = [] if wanted is None else [wanted]
        while len(numbers) < count:
            self._next_port += 1
            if self._next_port not in self.taken_ports and str(self._next_port) not in leased:
                numbers.append(self._next_port)
        return SimulatedPorts(self, tuple(numbers))

    def lease_ports(self, numbers: Sequence[int], derived: Sequence[int] = ()) -> HeldPorts:
        """See `lifecycle.host.Host`."""
        if numbers[0] in self.taken_ports:
            raise PortTaken(numbers[0], "somebody else")
        return SimulatedPorts(self, tuple(numbers), held=False)

    def leave(self, process: SimulatedProcess) -> None:
        """The manager of this process has died: it is kept if that was allowed, otherwise it is ended."""
        if process.kept is None:
            process.exit(-9)
        else:
            self.left = process

    async def find_kept(self, label: str) -> Kept | None:
        """See `lifecycle.host.Host`."""
        await self._meet("find_kept")
        left = self.left
        if left is None or left.kept is None or not left.running:
            return None
        return Kept(left.kept[0], 1, left.pids(), left)

    async def adopt(self, kept: Kept) -> Process:
        """See `lifecycle.host.Host`."""
        await self._meet("adopt")
        process = self.left
        if process is None or process is not kept.record or not process.running:
            raise StokerError("its keeper has gone")
        self.left = None
        self.processes.append(process)
        return process

    async def spawn(self, what: Spawn) -> Process:
        """See `lifecycle.host.Host`."""
        await self._meet("spawn")
        self._labels.add(what.label)
        life = self.lives[min(len(self.processes), len(self.lives) - 1)]
        leased = {hold.name for hold in self.ledger.open("lease")}
        words = re.findall(r"\d+", " ".join((*what.command.argv, *filter(None, what.command.env.values()))))
        port = next((int(word) for word in words if word in leased), None)
        process = SimulatedProcess(100 + len(self.processes), what.log, life, port, self._meet)
        if any(other.alive and other.port == port for other in self.processes):
            self.ledger.violations.append(f"process {process.pid} was launched while another one has its port {port}")
        self.processes.append(process)
        return process

    def prober(self, base_url: str, api_key: str | None) -> Prober:
        """See `lifecycle.host.Host`."""
        return SimulatedProber(self, base_url)

    def strangers(self, address: str, port: int, ours: frozenset[int]) -> frozenset[int] | None:
        """See `lifecycle.host.Host`."""
        there = self.at(port)
        if there is None or not there.listening:
            return frozenset()
        pid = STRANGER if there.life.stolen else there.pid
        return None if pid in ours else frozenset((pid,))

    def at(self, port: int | None) -> SimulatedProcess | None:
        """Who would be reached at a port: the living process that has it, or else the external server."""
        everybody = [*([self.left] if self.left is not None else []), *self.processes]
        mine = [process for process in everybody if process.port == port]
        living = [process for process in mine if process.alive or process.life.stolen]
        return living[-1] if living else None if mine else self.endpoint

    def transport(self) -> httpx.AsyncBaseTransport:
        """A transport for `httpx.AsyncClient` through which requests reach the simulated servers."""
        from lifecycle.testing.transport import SimulatedTransport

        return SimulatedTransport(self)

    def _released(self, what: str, processes: Iterable[SimulatedProcess]) -> None:
        for process in processes:
            if process.alive:
                self.ledger.violations.append(f"{what} was released while process {process.pid} lives")


class SimulatedMemory:
    """Implements `lifecycle.host.DeviceMemory`: back after what is planned for `memory`."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    async def back(self, limit: float) -> bool:
        """See `lifecycle.host.DeviceMemory`."""
        with anyio.move_on_after(limit):
            await self._host._meet("memory")
            return True
        return False

    def holders(self, ours: frozenset[int]) -> tuple[str, ...]:
        """See `lifecycle.host.DeviceMemory`."""
        return ()


class SimulatedPorts:
    """Implements `lifecycle.host.HeldPorts`."""

    def __init__(self, host: SimulatedHost, numbers: tuple[int, ...], *, held: bool = True) -> None:
        self.numbers = numbers
        self._host = host
        self._leases = [host.ledger.begin("lease", str(number)) for number in numbers]
        self._sockets = [host.ledger.begin("socket", str(number)) for number in numbers if held]

    def let_go(self) -> None:
        """See `lifecycle.host.HeldPorts`."""
        self._close(self._sockets)

    def release(self) -> None:
        """See `lifecycle.host.HeldPorts`."""
        self.let_go()
        if self._leases:
            users = [process for process in self._host.processes if process.port in self.numbers]
            self._host._released(f"port {self.numbers[0]}", users)
        self._close(self._leases)

    def _close(self, holds: list[Hold]) -> None:
        while holds:
            self._host.ledger.end(holds.pop())


class SimulatedLock:
    """Implements `lifecycle.host.CompileLock`."""

    def __init__(self, host: SimulatedHost, key: str) -> None:
        self.released = anyio.Event()
        self._host = host
        self._key = key
        self._hold = host.ledger.begin("lock", key)

    def complete(self) -> None:
        """See `lifecycle.host.CompileLock`."""
        self._host.complete_caches.add(self._key)

    def release(self) -> None:
        """See `lifecycle.host.CompileLock`."""
        if self.released.is_set():
            return
        # Whose process it is can only be told where there is one server.
        if self._key not in self._host.complete_caches and len(self._host._labels) == 1:
            self._host._released(f"the compile lock {self._key!r}", self._host.processes)
        self._host.ledger.end(self._hold)
        del self._host._locks[self._key]
        self.released.set()


class SimulatedProber:
    """Implements `lifecycle.host.Prober`."""

    def __init__(self, host: SimulatedHost, base_url: str) -> None:
        self._host = host
        self._port = urlsplit(base_url).port
        self._model = ""

    async def get(self, path: str, timeout: float) -> Answer:
        """See `lifecycle.host.Prober`."""
        there = await self._reach(timeout, lambda process: process.deaf)
        if not there.ready or there.dead:
            return Answer(503, "loading" if not there.ready else "dead")
        if path == "/load":
            return Answer(200, there.load) if there.life.tells_load else Answer(404, "")
        if path == "/v1/models":
            return Answer(there.life.status, {"data": [{"id": there.life.model or MODEL}]})
        return Answer(there.life.status, "")

    async def post(self, path: str, payload: Mapping[str, Any], timeout: float) -> Answer:
        """See `lifecycle.host.Prober`."""
        there = await self._reach(timeout, lambda process: process.wedged and path.startswith("/v1/"))
        there.posted.append(path)
        if path == "/abort":
            there.others = 0
        if path in ("/sleep", "/wake"):
            there.asleep = path == "/sleep"
        elif there.asleep and path.startswith("/v1/"):
            there.exit(1, "a request reached an engine that sleeps")
            raise NoAnswer("the connection was lost")
        return Answer(there.life.status if there.ready else 503, {"choices": [{"text": " there"}]})

    async def listening(self) -> bool:
        """See `lifecycle.host.Prober`."""
        await self._host._meet("listening")
        there = self._host.at(self._port)
        return there is not None and there.listening

    async def aclose(self) -> None:
        """See `lifecycle.host.Prober`."""

    async def _reach(self, timeout: float, silent: Callable[[SimulatedProcess], bool]) -> SimulatedProcess:
        await self._host._meet("probe")
        with anyio.move_on_after(timeout):
            await anyio.sleep(LATENCY)
            there = self._host.at(self._port)
            if there is None or not there.listening:
                raise NoAnswer(f"nobody listens on port {self._port}", refused=True)
            while silent(there):
                await there.change(float("inf"))
            return there
        raise NoAnswer(f"no answer within {timeout:g} s")


MODEL = "simulated"
"""The model that a simulated server names unless its `Life` says another one."""
