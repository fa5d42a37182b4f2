"""One machine with many managers on it, any of which may be killed at any step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx

from lifecycle.adapter import CompileCache
from lifecycle.diagnosis import Exit
from lifecycle.errors import LaunchError, PortTaken
from lifecycle.host import (
    ASK_TIMEOUT,
    NOTHING,
    Answer,
    CompileLock,
    DeviceMemory,
    HeldPorts,
    Holder,
    Keepsake,
    Kept,
    NoAnswer,
    Prober,
    Process,
    Spawn,
)  # fmt: skip
from lifecycle.resources import compile_lock
from lifecycle.server import Server
from lifecycle.testing import SimulatedHost, SimulatedProcess
from lifecycle.testing.host import SimulatedPorts
from tests.simulation.whole.draw import Draw, life
from tests.simulation.whole.locks import OWNER, LockService

KEEPER_GRACE = 5.0
"""Seconds that a keeper gives its tree when its manager has gone, here."""
SLOWEST_THREAD = 2.0


class Machine(SimulatedHost):
    """Ports, processes and compile caches that all managers share. `calm`: nothing goes wrong any more."""

    def __init__(self, draw: Draw, random: Random, folder: Path) -> None:
        super().__init__()
        self.draw = draw
        self.random = random
        self.folder = folder
        self.calm = False
        self.owners: dict[int, Place] = {}
        self.locks = LockService(
            self.ledger, flock=draw.flock, one_host=draw.one_host, fails=lambda: self.happens("bad lock"),
            pick=random.randrange,
        )  # fmt: skip

    def happens(self, kind: str) -> bool:
        rate = self.draw.rates.get(kind, 0.0)
        return rate > 0 and not self.calm and self.random.random() < rate

    def thread_takes(self) -> float:
        return self.random.uniform(0, SLOWEST_THREAD) if self.happens("slow thread") else 0.0

    def next_life(self) -> None:
        """Decide what the next process does."""
        rates = {} if self.calm else self.draw.rates
        self.lives = [life(self.random, rates, self.draw.reply)] * (len(self.processes) + 1)

    async def hold_ports(
        self, address: str, wanted: int | None, count: int, derived: Sequence[int] = ()
    ) -> HeldPorts:
        """Those of a tree that still ends are taken: its manager's lease has gone, its sockets have not."""
        self.taken_ports = {each.port for each in self.processes if each.alive and each.port is not None}
        return await super().hold_ports(address, wanted, count, derived)

    def trees(self) -> list[SimulatedProcess]:
        return [each for each in self.processes if each.alive]


class Manager:
    """A command of Stoker. When it is killed, nothing that it does any more has an effect: its tasks are cancelled, and
    their cleanups meet a machine that does not hear them."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name
        self.dead = False
        self.places: list[Place] = []
        self.scope = anyio.CancelScope()
        self.on_death: list[Callable[[], None]] = []

    def kill(self) -> None:
        if self.dead:
            return
        self.dead = True
        for place in self.places:
            place.died()
        for what in self.on_death:
            what()
        self.scope.cancel()


class Place:
    """Implements `lifecycle.host.Host` for one server of a manager."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.machine = manager.machine
        self.server: Server | None = None
        self.serves: Callable[[], str] | None = None
        """The state of what requests to its process are for: the server, or the group that it is the head of."""
        self.ports: list[KeptPorts] = []
        self.processes: list[KeptProcess] = []
        manager.places.append(self)

    @property
    def dead(self) -> bool:
        return self.manager.dead

    def died(self) -> None:
        """The kernel closes its sockets and lets go of its leases; the keeper ends its tree; a lock may go stale."""
        for ports in self.ports:
            ports.end()
        for process in self.processes:
            process.orphaned()
        self.machine.locks.died(self)

    def held(self) -> list[str]:
        """What this server holds now."""
        held = ["ports" for ports in self.ports if ports.open]
        held += ["process" for process in self.processes if process.real.alive]
        return held + ["lock" for lock in self.machine.locks.living() if lock.owner is self]

    async def _bug(self) -> None:
        if self.machine.happens("bug"):
            await anyio.lowlevel.checkpoint()
            raise RuntimeError("a bug")

    @property
    def state_dir(self) -> Path:
        return self.machine.folder

    def attempt_log(self, label: str, attempt: int) -> Path:
        return Path(f"/simulated/{label}-{attempt}.log")

    async def ask(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
        await self._bug()
        return await self.machine.ask(argv, env=env, timeout=timeout)

    async def compile_lock(
        self, cache: CompileCache, waiting: Callable[[Holder | None], None] = lambda holder: None
    ) -> CompileLock | None:
        OWNER.set(self)

        def told(holder: Holder | None) -> None:  # its pid is this test's own, another one in each run
            waiting(holder and Holder("a host", 1, 0.0))

        return await compile_lock.acquire(cache, self.state_dir, waiting=told)

    def void_cache(self, cache: CompileCache) -> None:
        if not self.dead:
            compile_lock.void(cache, self.state_dir)

    def device_memory(self, env: Mapping[str, str] = NOTHING) -> DeviceMemory | None:
        return None

    def local_weights(self, model: str, revision: str, environ: Mapping[str, str | None]) -> Path | None:
        return None

    def oom_kills(self) -> int | None:
        return None

    async def hold_ports(
        self, address: str, wanted: int | None, count: int, derived: Sequence[int] = ()
    ) -> HeldPorts:
        await self._bug()
        if self.machine.happens("port thief"):
            raise PortTaken(80, "somebody else")
        held = await self.machine.hold_ports(address, wanted, count, derived)
        assert isinstance(held, SimulatedPorts)
        ports = KeptPorts(self, held)
        self.ports = [each for each in self.ports if each.open] + [ports]
        if self.dead:
            ports.end()
        return ports

    def lease_ports(self, numbers: Sequence[int], derived: Sequence[int] = ()) -> HeldPorts:
        return self.machine.lease_ports(numbers, derived)

    async def find_kept(self, label: str) -> Kept | None:
        """Nobody keeps a server here: the keepers of this world end them."""
        return None

    async def adopt(self, kept: Kept) -> Process:
        return await self.machine.adopt(kept)

    async def spawn(self, what: Spawn) -> Process:
        await self._bug()
        if self.dead or self.machine.happens("no launch"):
            raise LaunchError("no such program")
        self.machine.next_life()
        process = await self.machine.spawn(what)
        assert isinstance(process, SimulatedProcess)
        self.machine.owners[process.pid] = self
        kept = KeptProcess(self, process)
        self.processes = [each for each in self.processes if each.real.alive] + [kept]
        if self.dead:
            kept.orphaned()
        return kept

    def prober(self, base_url: str, api_key: str | None) -> Prober:
        return KeptProber(self, self.machine.prober(base_url, api_key))

    def strangers(self, address: str, port: int, ours: frozenset[int]) -> frozenset[int] | None:
        return self.machine.strangers(address, port, ours)


class KeptPorts:
    """Ports as one manager holds them."""

    def __init__(self, place: Place, ports: SimulatedPorts) -> None:
        self.numbers = ports.numbers
        self.open = True
        self._place = place
        self._ports = ports

    def let_go(self) -> None:
        if not self._place.dead:
            self._ports.let_go()

    def release(self) -> None:
        if not self._place.dead:
            self.open = False
            self._ports.release()

    def end(self) -> None:
        self.open = False
        self._ports._close(self._ports._sockets)
        self._ports._close(self._ports._leases)


class KeptProcess:
    """A process tree under the keeper of one manager."""

    def __init__(self, place: Place, real: SimulatedProcess) -> None:
        self.real = real
        self.pid = real.pid
        self.log = real.log
        self._place = place

    def keep(self, sake: Keepsake | None, seconds: float) -> None:
        if not self._place.dead:
            self.real.keep(sake, seconds)

    async def exited(self) -> Exit:
        await self._place._bug()
        return await self.real.exited()

    def lines(self) -> AsyncIterator[str]:
        return self.real.lines()

    def pids(self) -> frozenset[int]:
        return self.real.pids()

    def tail(self, count: int) -> list[str]:
        return self.real.tail(count)

    async def end(self, grace: float) -> None:
        if not self._place.dead:
            with anyio.CancelScope() as scope:
                self._place.manager.on_death.append(scope.cancel)
                try:
                    await self.real.end(grace)
                finally:
                    self._place.manager.on_death.remove(scope.cancel)

    def orphaned(self) -> None:
        """Its manager has gone: the keeper ends it."""
        real, now = self.real, anyio.current_time()
        if real.alive:
            real._end_main(now + (inf if real.life.term is None else real.life.term), 0)
            real._sweep(now + KEEPER_GRACE)


class KeptProber:
    def __init__(self, place: Place, prober: Prober) -> None:
        self._place = place
        self._prober = prober

    async def _meet(self) -> None:
        await self._place._bug()
        if self._place.dead or self._place.machine.happens("lost"):
            await anyio.lowlevel.checkpoint()
            raise NoAnswer("the connection was lost")
        if self._place.machine.happens("delayed"):
            await anyio.sleep(self._place.machine.random.uniform(0, 1.5))

    async def get(self, path: str, timeout: float) -> Answer:
        await self._meet()
        return await self._prober.get(path, timeout)

    async def post(self, path: str, payload: Mapping[str, Any], timeout: float) -> Answer:
        await self._meet()
        return await self._prober.post(path, payload, timeout)

    async def listening(self) -> bool:
        return await self._prober.listening()

    async def aclose(self) -> None:
        await self._prober.aclose()


class Wire(httpx.AsyncBaseTransport):
    """Requests of one manager: some are lost, before or after they were answered, some are late, some refused."""

    def __init__(self, manager: Manager, transport: httpx.AsyncBaseTransport) -> None:
        self._manager = manager
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        machine = self._manager.machine
        if self._manager.dead or machine.happens("lost"):
            await anyio.lowlevel.checkpoint()
            raise httpx.ConnectError("the connection was lost")
        if machine.happens("overload"):
            await anyio.lowlevel.checkpoint()
            return httpx.Response(503, headers={"retry-after": "1"}, text="busy", request=request)
        response = await self._transport.handle_async_request(request)
        if machine.happens("delayed"):
            await anyio.sleep(machine.random.expovariate(1.0))
        if self._manager.dead or machine.happens("lost"):
            raise httpx.ReadError("the answer was lost")
        return response
