"""A run of the whole system from one seed: what goes wrong in it, and what must hold."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx
import msgspec

from lifecycle.adapter import Capabilities
from lifecycle.batch.config import JobConfig
from lifecycle.batch.job import run_job
from lifecycle.batch.plan import Plan, _count
from lifecycle.batch.store import open_store
from lifecycle.config import ServerConfig
from lifecycle.errors import Draining, OutputError, StartFailed
from lifecycle.fleet import Fleet
from lifecycle.journal import Kind, Record
from lifecycle.server import Server
from lifecycle.service import Listener, Replica, Service
from lifecycle.testing import SimulatedAdapter, SimulatedProcess, run_virtual
from tests.batch.simulated_disk import Crash
from tests.batch.store_history import Output
from tests.simulation.whole.draw import Draw, draw
from tests.simulation.whole.fate import Fate
from tests.simulation.whole.groups import Crew
from tests.simulation.whole.job import Disk, Echo, Prompts, Quiet
from tests.simulation.whole.journals import broken
from tests.simulation.whole.machine import Machine, Manager, Place
from tests.simulation.whole.scheduler import Clock, Threads, simulated
from tests.simulation.world import AT_REST, WITH_PORTS

QUICK: dict[str, Any] = {
    "startup_timeout": 20.0, "no_progress_timeout": 15.0, "liveness_interval": 1.0, "liveness_timeout": 2.0,
    "stall_timeout": 8.0, "drain_timeout": 5.0, "terminate_timeout": 5.0, "backoff_initial": 0.5, "backoff_max": 4.0,
    "max_attempts": 4, "attempt_window": 20.0, "max_retries": 20, "model": "simulated",
}  # fmt: skip
BOUND = 600.0
"""Virtual seconds after the last fault within which every server is Healthy or final, and the job is finished."""


@dataclass
class Ran:
    """What a run came to."""

    draw: Draw
    errors: list[str]
    records: list[Record]
    faults: Counter[str]
    runs: int
    seconds: float
    """Of virtual time."""
    lines: int = 0
    failed: int = 0
    folder: str = ""

    @property
    def journal(self) -> bytes:
        """Every record of every manager, in order, as JSON Lines; the same bytes each time."""
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in self.records)
        return lines.replace(self.folder.encode(), b"/simulated")

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.journal).hexdigest()


@dataclass
class World:
    """`errors` holds every rule that was broken."""

    draw: Draw
    random: Random
    folder: Path
    errors: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.machine = Machine(self.draw, self.random, self.folder)
        self.threads = Threads(self.random, self.machine.thread_takes)
        self.disk = Disk()
        self.machine.on_request = self._check_request
        self.managers: list[Manager] = []
        self.crews: list[Crew] = []
        self.stop: anyio.Event | None = None
        self.runs = self.floor = self.lines = self.failed = 0
        self.steps: dict[Manager, int] = {}
        self._calm = anyio.Event()
        self._done = False
        self._by_life: dict[tuple[Manager, str], list[list[Record]]] = defaultdict(list)

    # What runs

    async def live(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Fate(self).strike)
            tasks.start_soon(self._threads_go_on)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as commands:
                    commands.start_soon(self._job)
                    for number in range(self.draw.rivals):
                        commands.start_soon(self._rival, number)
                    commands.start_soon(self._become_calm, scope)
            if scope.cancelled_caught:
                self.errors.append(f"not over {BOUND:g} s after the last fault: {self._stands()}")
            tasks.cancel_scope.cancel()
        await self._check_end()

    async def _become_calm(self, scope: anyio.CancelScope) -> None:
        await anyio.sleep(self.draw.calm_after)
        self.machine.calm = True
        self.disk.full_from = self.disk.fail_at = self.disk.crash_at = None
        self.steps.clear()
        for crew in self.crews:
            for rank in range(self.draw.nodes):
                crew.network.plug(f"host-{rank}")
        self._calm.set()
        scope.deadline = anyio.current_time() + BOUND

    def _stands(self) -> str:
        stands: dict[str, str] = {}
        for record in self.records:
            if record.after:
                stands[record.server] = record.after
        return str({name: state for name, state in stands.items() if state not in ("Stopped", "Failed")})

    async def command(self, manager: Manager, body: Callable[[Manager], Awaitable[None]]) -> None:
        """A command of Stoker, until it ends or is killed."""
        self.managers.append(manager)
        try:
            with manager.scope:
                await body(manager)
        except (StartFailed, Draining, OutputError) as error:
            self.tell(f"{manager.name} ends", error=type(error).__name__)
        except (Crash, BaseExceptionGroup) as error:
            rest = error.split(Crash)[1] if isinstance(error, BaseExceptionGroup) else None
            if not manager.dead or rest is not None:
                self.errors.append(f"{manager.name}: {rest or error!r}")
        except Exception as error:
            if not manager.dead:
                self.errors.append(f"{manager.name}: {error!r}")
        finally:
            self.managers.remove(manager)

    async def _job(self) -> None:
        while not self._done:
            self.runs += 1
            manager = Manager(self.machine, f"r{self.runs}")
            manager.on_death.append(self.disk.kill)
            self.disk.on_crash = manager.kill
            await self.command(manager, self._generate)
            await anyio.sleep(self.random.uniform(0.1, 3.0))

    async def _generate(self, manager: Manager) -> None:
        with self._plan() as plan:
            if plan.left == 0:
                plan.store.finish()
                self._done = True
                return
            shown, stop, cuts = Quiet(), anyio.Event(), self.faults["power cut"]
            self.stop = stop
            over = anyio.Event()
            try:
                async with anyio.create_task_group() as hosts:
                    service = self._service(manager, hosts, over)
                    try:
                        async with service, anyio.create_task_group() as others:
                            if isinstance(service, Fleet) and "rolling restart" in self.draw.rates:
                                others.start_soon(self._restart, service)
                            await run_job(
                                plan, service.request, progress=shown, stop=stop, load=service.load,
                                retried=lambda: service.client.sent_again, at_server=lambda: service.client.in_flight,
                            )  # fmt: skip
                            others.cancel_scope.cancel()
                    finally:
                        over.set()
            except BaseExceptionGroup as errors:
                raise _alone(errors) from None
            finally:
                if shown.tally is not None and cuts == self.faults["power cut"]:
                    self.floor = max(self.floor, plan.earlier + shown.tally.finished)

    def _plan(self) -> Plan:
        """As `lifecycle.batch.plan.prepare`, on the simulated disk."""
        path = "/out.jsonl" if self.draw.format == "single" else "/out/"
        format = "jsonl" if self.draw.format == "single" else self.draw.format
        job = JobConfig("prompts", path, concurrency=self.draw.concurrency)
        store = open_store(
            path, format=format, part_size=self.draw.part_size, disk=self.disk, take_lock=self.disk.lock
        )  # fmt: skip
        plan = Plan(job, Prompts(self.draw.records), store, Path(path), job.defaults, None, None, store.finished, 0)
        plan.total = _count(plan)
        if plan.earlier < self.floor:
            self.errors.append(f"{self.floor} records were finished, {plan.earlier} are")
        self._check_lines(store.finished)
        return plan

    def _service(self, manager: Manager, hosts: anyio.abc.TaskGroup, over: anyio.Event) -> Service:
        config = ServerConfig("simulated", name=manager.name, **QUICK)
        service: Service
        if self.draw.shape == "server":
            service = self._server(manager, config, self._listen(manager))
        else:

            def make(number: int, config: ServerConfig, listener: Listener) -> Replica:
                if self.draw.shape == "fleet":
                    return self._server(manager, config, listener)
                crew = Crew(manager, config, self.draw.nodes, self._listen)
                self.crews.append(crew)
                for rank in range(1, self.draw.nodes):
                    hosts.start_soon(crew.keep, rank, self.command, over)
                return crew.group

            service = Fleet(
                config, replicas=self.draw.replicas, min_healthy=self.draw.min_healthy, cap=self.draw.cap,
                adapter=self._adapter(), make=make, listener=self._listen(manager),
            )  # fmt: skip
        service.client._http = httpx.AsyncClient(transport=Echo(manager, self.machine.transport()))
        return service

    def _adapter(self) -> SimulatedAdapter:
        can = Capabilities(ready_paths=("/health",), load_path="/load")
        return SimulatedAdapter(compiles="cache" if self.draw.compiles else "", capabilities=can)

    def _server(self, manager: Manager, config: ServerConfig, listener: Listener) -> Server:
        place = Place(manager)
        place.server = server = Server(config, adapter=self._adapter(), host=place, listener=listener)
        place.serves = lambda: server.state
        return server

    async def _restart(self, fleet: Fleet) -> None:
        """Somebody wants the replicas replaced, now and then."""
        while True:
            await anyio.sleep(self.random.expovariate(1 / self.draw.rates["rolling restart"]))
            if self.machine.calm:
                return
            self.faults["rolling restart"] += 1
            self.tell("rolling restart")
            with suppress(StartFailed, Draining):
                await fleet.rolling_restart()

    async def _rival(self, number: int) -> None:
        count = 0
        while not self._calm.is_set():
            count += 1
            await self.command(Manager(self.machine, f"rival-{number}-{count}"), self._serve)
            await anyio.sleep(self.random.uniform(0.1, 5.0))

    async def _serve(self, manager: Manager) -> None:
        server = self._server(
            manager, ServerConfig("simulated", name=manager.name, **QUICK), self._listen(manager)
        )
        async with server, anyio.create_task_group() as group:
            group.start_soon(self._stop_when_calm, server)
            await server.ended()
            group.cancel_scope.cancel()

    async def _stop_when_calm(self, server: Server) -> None:
        await self._calm.wait()
        with suppress(StartFailed, Draining):
            await server.healthy()
            await server.stop()

    async def _threads_go_on(self) -> None:
        while True:
            await anyio.sleep(0.5)
            self.threads.catch_up()

    # What must hold

    def tell(self, fault: str, **more: Any) -> None:
        now = self.clock.monotonic()
        self.records.append(
            Record(len(self.records), now, "fate", 0, Kind.PHASE, detail={"fault": fault, "at": now, **more})
        )

    def _listen(self, manager: Manager) -> Listener:
        def heard(record: Record) -> None:
            if manager.dead:
                return
            self.records.append(record)
            lives = self._by_life[manager, record.server]
            if record.kind is Kind.BEGIN:
                lives.append([])
            lives[-1].append(record)
            self._check()
            left = self.steps.get(manager)
            if left is not None:
                self.steps[manager] = left - 1
                if left <= 0:
                    del self.steps[manager]
                    manager.kill()

        return heard

    def _check(self) -> None:
        ledger = self.machine.ledger
        for kind in ("lease", "socket"):
            doubled = [name for name, count in Counter(h.name for h in ledger.open(kind)).items() if count > 1]
            self._rule(not doubled, f"{kind} of {doubled} is held twice")
        holders = self.machine.locks.living()
        self._rule(len(holders) == len({each.entry for each in holders}), "a compile lock is held twice")
        for manager in self.managers:
            for place in manager.places:
                if place.server is not None and not manager.dead:
                    self._check_server(place, place.server.state)
        self.errors += ledger.violations
        ledger.violations.clear()

    def _check_server(self, place: Place, state: str) -> None:
        held = place.held()
        name = place.server.config.label if place.server is not None else ""
        self._rule(state not in AT_REST or not held, f"{name} is {state} and holds {held}")
        self._rule(state in WITH_PORTS or "ports" not in held, f"{name} is {state} and holds ports")
        self._rule(held.count("process") <= 1, f"{name} has {held} in {state}")
        self._rule("process" not in held or "ports" in held, f"{name} has a process without its ports in {state}")

    def _check_request(self, process: SimulatedProcess) -> None:
        place = self.machine.owners[process.pid]
        self._rule(not place.dead, "a manager that is dead has sent a request")
        state = place.serves() if place.serves is not None else "nothing that serves"
        self._rule(state in ("Healthy", "Draining"), f"a request reached {place.manager.name}'s server: {state}")

    def _rule(self, holds: bool, broken: str) -> None:
        if not holds:
            self.errors.append(broken)

    def _check_lines(self, finished: int) -> None:
        output = Output(self.draw.format, self.disk)
        counts = Counter(line["prompt"] for line in output.lines())
        doubled = [prompt for prompt, count in counts.items() if count > 1]
        self._rule(not doubled, f"{doubled} have several lines")
        self._rule(len(counts) == finished, f"{len(counts)} records have a line, {finished} are finished")

    async def _check_end(self) -> None:
        await anyio.sleep(30.0)  # the trees of killed managers end
        self.threads.catch_up(all_of_them=True)
        self._check()
        trees, leases = self.machine.trees(), self.machine.ledger.open("lease")
        self._rule(not trees and not leases, f"{len(trees)} trees and {len(leases)} leases are left at the end")
        self._rule(not self.machine.locks.living(), "a compile lock is held at the end")
        for (manager, server), lives in self._by_life.items():
            for records in lives:
                self.errors += broken(f"{server} of {manager.name}", records)
        if not self._done:
            return
        lines = Output(self.draw.format, self.disk).lines()
        wanted = {f"p{number}" for number in range(self.draw.records)}
        self.lines, self.failed = len(lines), sum("error" in line for line in lines)
        self._rule(sorted(line["prompt"] for line in lines) == sorted(wanted), "the output is not that of the input")
        texts = [(line["prompt"], line["generations"][0]["text"]) for line in lines if "error" not in line]
        self._rule(all(prompt == text for prompt, text in texts), "a record has the answer to another one")


def _alone(error: BaseException) -> BaseException:
    """The only error of a group, or the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def run(seed: int, backend: str = "asyncio") -> Ran:
    """One run. Never raises for what it finds: that is in `Ran.errors`."""
    random = Random(seed)
    drawn = draw(random, seed)
    with tempfile.TemporaryDirectory(prefix="stoker-whole-") as folder:
        world: World | None = None

        async def body() -> float:
            nonlocal world
            world = World(drawn, random, Path(folder))
            with simulated(seed, world.clock, world.threads, world.machine.locks):
                await world.live()
                return anyio.current_time()

        errors: list[str] = []
        seconds = 0.0
        try:
            seconds = run_virtual(body, backend=backend, seed=seed, limit=1e5)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            errors.append(f"the run itself: {error!r}")
        assert world is not None
        return Ran(
            drawn, world.errors + errors, world.records, world.faults, world.runs, seconds, world.lines, world.failed,
            folder,
        )  # fmt: skip
