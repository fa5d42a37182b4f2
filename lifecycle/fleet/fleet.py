"""Equal replicas behind one client, on one host.

    async with Fleet(config, replicas=8, min_healthy=6) as fleet:
        answer = await fleet.chat({"messages": [{"role": "user", "content": "Hello"}]})

It is used like a `Server`. Entering returns at once, all replicas start at the same time, and requests are sent as soon
as one of them is Healthy. Leaving drains and ends them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from lifecycle.adapter import Adapter, EngineLoad, load_adapter
from lifecycle.chart import Event
from lifecycle.client import Client
from lifecycle.config import ServerConfig, check
from lifecycle.diagnosis import Diagnosis
from lifecycle.driver import Activity, Disposition, Driver
from lifecycle.ending import stop_within
from lifecycle.errors import StartFailed
from lifecycle.fleet.chart import FLEET
from lifecycle.fleet.dispatch import Dispatch
from lifecycle.fleet.facts import FleetFacts
from lifecycle.fleet.settings import FleetConfig, check_fleet, check_local, refuse_rest
from lifecycle.fleet.shares import environments
from lifecycle.fleet.slot import Slot
from lifecycle.host import Host
from lifecycle.journal import FileSink, Journal, Kind, Record
from lifecycle.living import Living
from lifecycle.requests import Requests
from lifecycle.secrets import api_key
from lifecycle.server import Server
from lifecycle.server_facts import Ended, Fault, Kill, Shutdown
from lifecycle.service import Listener, Replica

Make = Callable[[int, ServerConfig, Listener], Replica]
"""Makes the replica of a slot: (number from 0, its configuration with its name, whom to tell of each record)."""
Act = Activity[FleetFacts]
FINAL = ("Stopped", "Failed")
NAMED = 3
"""Replicas that a line for people names; of the others it says how many there are."""


class Fleet(Requests):
    """Replicas with one life, from Idle to Stopped or Failed. Implements `lifecycle.service.Service`.

    It is Healthy while at least `min_healthy` replicas are. With fewer, requests go to those that are left, and wait if
    there is none; the fleet is given up when fewer than `min_healthy` can ever be Healthy again, each replica having
    its own budget of attempts.

    Args:
        config: what each replica runs. Its name is theirs, with `-0`, `-1`, … added.
        replicas: how many there are.
        min_healthy: how many must be Healthy for the fleet to be.
        cap: most requests in flight at one replica. None: as many as it takes.
        replica_gpus: GPUs of each, see `FleetConfig`.
        adapter, host, listener: as for a `Server`; the listener is told of every record of the fleet and its replicas.
        journal: a file to append all journals to.
        make: makes the replicas. Default: servers on this host, which share out its GPUs.

    Raises `ConfigError` before anything is started.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        replicas: int,
        min_healthy: int = 1,
        cap: int | None = None,
        replica_gpus: int | None = None,
        adapter: Adapter | None = None,
        host: Host | None = None,
        journal: Path | str | None = None,
        listener: Listener | None = None,
        make: Make | None = None,
    ) -> None:
        self.config = config
        self.adapter = adapter or load_adapter(config.backend)
        self.size = FleetConfig(replicas, min_healthy, cap, replica_gpus)
        check(config, self.adapter, ask_backend=make is None)  # others may be made elsewhere, where the model is
        check_fleet(self.size)
        refuse_rest(config)
        if make is None:
            check_local(self.size, config, self.adapter)
            make = local(self.size, config, self.adapter, host, journal)
        self._listener: Listener = listener or (lambda record: None)
        self.journal = Journal(config.label, [FileSink(Path(journal))] if journal else [])
        self.dispatch = Dispatch(config.label, cap)
        self.client = Client(
            self.dispatch,
            api_key=api_key(config),
            request_timeout=config.request_timeout,
            max_retries=config.max_retries,
        )
        self.slots = tuple(self._slot(number, make) for number in range(replicas))
        self.driver: Driver[FleetFacts] = Driver(
            FLEET,
            FleetFacts(replicas, min_healthy),
            {"keep": self._keep, "wind_down": self._wind_down},
            self.journal,
            fault=Fault,
            shutdown=Shutdown(),
            force=self._force,
        )
        self.journal.listen(self._follow)
        self.journal.listen(self._listener)
        self._within: float | None = None
        self._turn = anyio.Lock()
        self._living = Living("Fleet", config.label, self.driver, self.journal)

    def _slot(self, number: int, make: Make) -> Slot:
        config = replace(self.config, name=f"{self.config.label}-{number}")
        return Slot(config.label, lambda: make(number, config, self._listener))

    async def __aenter__(self) -> Self:
        await self._living.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._living.end(self.client.aclose)

    async def healthy(self) -> tuple[str, ...]:
        """Wait until at least `min_healthy` replicas are Healthy; the base URLs of all that are, without /v1.

        Raises `StartFailed` if the fleet was given up and `Draining` if it was stopped instead.
        """
        self._living.check_begun()
        await self.dispatch.until(lambda: self.state == "Healthy")
        return self.urls

    async def rolling_restart(self) -> None:
        """Replace the replicas one after the other: each is drained and ended, another one is started in its place,
        and is Healthy before the next one's turn. Replicas that were given up are replaced as well.

        No request is refused: the others take what comes, and where there is none it waits. A replica is only drained
        when `min_healthy` others are Healthy (or all others, if there are no more than that). Returns when all are
        replaced. Raises `StartFailed` if one does not become Healthy again, and leaves those after it as they are;
        `Draining` if the fleet ends meanwhile; `ConfigError` if none can be made any more.
        """
        self._living.check_begun()
        async with self._turn:
            for slot in self.slots:
                await self._restart(slot)

    async def _restart(self, slot: Slot) -> None:
        others = [each for each in self.slots if each is not slot]
        wanted = min(self.size.min_healthy, len(others))
        await self.dispatch.until(lambda: sum(each.replica.gate.is_open for each in others) >= wanted)
        fresh = slot.renew()
        await self.dispatch.until(lambda: fresh.gate.is_open or fresh.state in FINAL)
        if fresh.state in FINAL:
            raise StartFailed(fresh.diagnosis or Diagnosis("stopped", f"server {slot.name!r} was stopped"))

    async def stop(self, within: float | None = None) -> Disposition:
        """Drain and end all replicas. Returns when the drain has begun. Can be called again. See `Server.stop`."""
        self._within = within
        again = self.state == "Draining"
        said = await self.driver.send(stop_within(self.config, within))
        if again:
            self._close(kill=False)
        return said

    async def kill(self) -> Disposition:
        """End all replicas now, whatever is in flight. Cuts a drain short."""
        return await self.driver.send(Kill())

    async def ended(self) -> str:
        """Wait for the final state and return it: "Stopped" or "Failed". Everything is released by then."""
        await self.driver.ended()
        return self.driver.state

    @property
    def state(self) -> str:
        return self.driver.state

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URLs of the replicas that are Healthy now, without /v1."""
        return tuple(slot.replica.url for slot in self.slots if slot.replica.gate.is_open)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why the fleet was given up, or why the latest of its replicas was."""
        return self.driver.facts.diagnosis

    @property
    def starts(self) -> int:
        """How many starts of servers were begun so far."""
        return sum(slot.starts for slot in self.slots)

    @property
    def waiting_for(self) -> str:
        """What the present state waits for, for people; empty if nothing is waited for."""
        if self.state == "Draining" and self.dispatch.in_flight:
            return f"{self.dispatch.in_flight} requests in flight"
        if self.state not in ("Starting", "Draining"):
            return ""
        away = [slot for slot in self.slots if not slot.replica.gate.is_open and not slot.over.is_set()]
        told = [f"{slot.name} {slot.replica.state}" + _in_brackets(slot.replica.waiting_for) for slot in away[:NAMED]]
        told += [f"{len(away) - NAMED} more"] if len(away) > NAMED else []
        count = f"{len(self.urls)} of {len(self.slots)} Healthy" if self.state == "Starting" else ""
        return "; ".join(filter(None, (count, *told)))

    async def load(self) -> EngineLoad | None:
        """What the engines of all Healthy replicas together say that they work on; None if none of them says so."""
        found: dict[int, EngineLoad] = {}

        async def ask(number: int, replica: Replica) -> None:
            load = await replica.load()
            if load is not None:
                found[number] = load

        async with anyio.create_task_group() as group:
            for number, slot in enumerate(self.slots):
                if slot.replica.gate.is_open:
                    group.start_soon(ask, number, slot.replica)
        each = [found[number] for number in sorted(found)]
        progress = tuple(counter for load in each for counter in load.progress)
        running, waiting = sum(load.running for load in each), sum(load.waiting for load in each)
        return EngineLoad(running, waiting, progress) if each else None

    def _follow(self, record: Record) -> None:
        if record.kind in (Kind.TRANSITION, Kind.INTERNAL):
            self.dispatch.follow(self.driver.state, self.driver.facts)

    async def _keep(self, act: Act) -> None:
        def post(event: Event) -> None:
            act.post(event)

        async with anyio.create_task_group() as group:
            for slot in self.slots:
                group.start_soon(slot.keep, self.dispatch, post, name=f"slot {slot.name}")

    async def _wind_down(self, act: Act) -> None:
        self._close(kill=act.facts.killed)
        for slot in self.slots:
            await slot.over.wait()
        act.post(Ended())

    def _close(self, *, kill: bool) -> None:
        for slot in self.slots:
            slot.close(within=self._within, kill=kill)

    async def _force(self, activity: str) -> None:
        """A cleanup hangs: kill what it may be waiting for."""
        for slot in self.slots:
            if slot.replica.state not in ("Idle", *FINAL):
                await slot.replica.kill()


def local(
    size: FleetConfig, config: ServerConfig, adapter: Adapter, host: Host | None, journal: Path | str | None
) -> Make:
    """Servers on this host, each with its share of the GPUs."""
    shares = environments(size, config, adapter, os.environ)

    def make(number: int, config: ServerConfig, listener: Listener) -> Replica:
        own = replace(config, env={**config.env, **shares[number]})
        return Server(own, adapter=adapter, host=host, journal=journal, listener=listener)

    return make


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
