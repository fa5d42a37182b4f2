"""A fleet with one URL for outsiders: a router before it, which knows the replicas that are Healthy.

    async with Front(config, router, replicas=4, min_healthy=2) as front:
        print(await front.healthy())

The router is a server like any other, with a life of its own: when it dies it is started again on the same port and
told of all replicas anew. At the end it goes first: it takes nothing new, lets what is in flight come to its end and
exits; then the replicas, which have nothing left to do, are ended. So nothing that was taken is lost, whatever an
engine does with its requests when it is told to end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import anyio
from anyio.abc import TaskGroup

from lifecycle.adapter import Adapter, Capabilities, EngineLoad, capabilities_of, load_adapter
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis
from lifecycle.errors import ConfigError, Draining, StartFailed, StokerError
from lifecycle.findings import other_server, refused_key
from lifecycle.fleet.fleet import Fleet, Make
from lifecycle.fleet.registrar import Registrar
from lifecycle.fleet.registry import Call, Routing
from lifecycle.fleet.settings import FleetConfig
from lifecycle.host import Answer, Host
from lifecycle.journal import Journal, Kind, Record
from lifecycle.probing import MODELS, NotYet, Ready, WrongKey, readiness
from lifecycle.resources.probes import HttpProber
from lifecycle.secrets import api_key
from lifecycle.server import Server
from lifecycle.service import Listener, Living

CALL_TIMEOUT = 10.0
"""Seconds for one call to the router."""
FINAL = ("Stopped", "Failed")


class Front:
    """One URL before many replicas. Implements `lifecycle.service.Living`.

    Args:
        config: what each replica runs.
        router: what the router runs; `port` and `host` are the outsiders' URL. Its backend must be a router's, and its
            key is the outsiders' and the replicas' alike: `config` names the same one, or none.
        size: how many replicas, and how many of them must be Healthy and known to the router for the URL to be served.
        adapter: the replicas' backend. Default: the installed one.
        host: the machine to run all on. Default: this one.
        make: makes the replicas, see `Fleet`. The router is here in any case.
        journal: a file to append all journals to.
        listener: told of every record, of the router, the fleet and its replicas.
        served: called with the URL each time that it begins to be served: at first, and when the router was restarted.

    Raises `ConfigError` before anything is started.
    """

    def __init__(
        self,
        config: ServerConfig,
        router: ServerConfig,
        size: FleetConfig,
        *,
        adapter: Adapter | None = None,
        host: Host | None = None,
        make: Make | None = None,
        journal: Path | str | None = None,
        listener: Listener = lambda record: None,
        served: Callable[[str], None] = lambda url: None,
    ) -> None:
        self.config = config
        self._adapter = adapter or load_adapter(config.backend)
        self._routing = routing_of(load_adapter(router.backend))
        self._listener = listener
        self._served = served
        self.fleet = Fleet(
            config,
            replicas=size.replicas,
            min_healthy=size.min_healthy,
            cap=size.replica_concurrency,
            replica_gpus=size.replica_gpus,
            adapter=self._adapter,
            host=host,
            make=make,
            journal=journal,
            listener=self._hear,
        )
        self.router = Server(router, host=host, journal=journal, listener=self._hear)
        self._key = api_key(router)
        self.registrar = Registrar(
            self.router.gate,
            lambda: self.fleet.dispatch.open,
            self._routing,
            self._ask,
            key=api_key(config),
            note=lambda text: self.router.driver.note(Kind.PHASE, phase=text),
        )
        self._control: tuple[str, HttpProber] | None = None
        self._own: Diagnosis | None = None
        """Why the URL cannot be served, although router and replicas live."""
        self._serving = 0
        """The life of the router in which the URL was seen to be served."""
        self._stopping = False
        self._end_by: float | None = None
        self._over = anyio.Event()
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        await self.fleet.__aenter__()
        await self.router.__aenter__()
        group = self._group = anyio.create_task_group()
        await group.__aenter__()
        group.start_soon(self._live, name=f"front of {self.config.label}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        try:
            with anyio.CancelScope(shield=True):
                if not self._over.is_set():
                    await self.stop()
                    await self.router.ended()
                    await self._after(self.router, self.fleet)  # `_live` does so, unless it was cancelled
                    await self.fleet.ended()
                    self._over.set()
        finally:
            try:
                await self._group.__aexit__(None, None, None)
            finally:
                try:
                    await self.router.__aexit__(None, None, None)
                finally:
                    await self.fleet.__aexit__(None, None, None)

    async def healthy(self) -> str:
        """Wait until requests are served; the URL, without /v1. Raises `StartFailed` or `Draining` like a server."""
        if self._group is None:
            raise StokerError("this front was not started: use it inside `async with Front(...)`")
        await self.registrar.until(lambda: self.is_served or self._stopping or self._over.is_set())
        if not self.is_served:
            self._refuse()
        return self.url

    def _refuse(self) -> None:
        if self.diagnosis is not None and not self._stopping:
            raise StartFailed(self.diagnosis)
        raise Draining(f"the front of {self.config.label!r} is ending and takes no new requests")

    async def stop(self, within: float | None = None) -> None:
        """Drain and end: the router first, then the replicas. Returns when the drain has begun. Can be called again.

        Args:
            within: seconds after which somebody else ends everything. None: as configured.
        """
        self._stopping = True
        self._end_by = None if within is None else anyio.current_time() + within
        if self.router.state in FINAL:
            await self.fleet.stop(within)
        else:
            await self.router.stop(within)
        self.registrar.look()

    async def kill(self) -> None:
        """End everything now, whatever is in flight. Cuts a drain short."""
        self._stopping = True
        async with anyio.create_task_group() as group:
            group.start_soon(self.router.kill)
            group.start_soon(self.fleet.kill)

    async def ended(self) -> str:
        """Wait for the final state and return it: "Stopped" or "Failed". Everything is released by then."""
        await self._over.wait()
        return self.state

    async def rolling_restart(self) -> None:
        """Replace the replicas one after the other; outsiders are refused nothing. See `Fleet.rolling_restart`."""
        await self.fleet.rolling_restart()

    async def load(self) -> EngineLoad | None:
        """What the engines of all Healthy replicas together say that they work on."""
        return await self.fleet.load()

    @property
    def url(self) -> str:
        """The outsiders' URL, without /v1."""
        return self.router.url

    @property
    def is_served(self) -> bool:
        """The router lives, and has been seen to answer through a replica."""
        return self._serving != 0 and self._serving == self.registrar.life

    @property
    def state(self) -> str:
        if self._over.is_set():
            return "Failed" if self._own or "Failed" in (self.router.state, self.fleet.state) else "Stopped"
        if self._stopping or self._own or self.router.state in FINAL or self.fleet.state in ("Draining", *FINAL):
            return "Draining"
        return "Healthy" if self.is_served else "Starting"

    @property
    def waiting_for(self) -> str:
        """What the present state waits for, for people; empty if nothing is waited for."""
        if self.state == "Healthy":
            return ""
        router = f"router {self.router.state}" if self.router.state not in (*FINAL, "Healthy") else ""
        known = f"router knows {self.registrar.have} of them" if self.state == "Starting" and not router else ""
        return "; ".join(filter(None, (router, known, self.fleet.waiting_for)))

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why it was given up, or what failed last."""
        router = self.router.diagnosis
        return self._own or (router if self.router.state == "Failed" else None) or self.fleet.diagnosis or router

    @property
    def journal(self) -> Journal:
        """The fleet's."""
        return self.fleet.journal

    @property
    def starts(self) -> int:
        """How many starts of servers were begun so far, the router's among them."""
        return self.fleet.starts + self.router.starts

    def _hear(self, record: Record) -> None:
        if record.kind is Kind.TRANSITION:
            self.registrar.look()
        self._listener(record)

    async def _live(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.registrar.run)
                group.start_soon(self._announce)
                async with anyio.create_task_group() as ends:
                    ends.start_soon(self._after, self.router, self.fleet)
                    ends.start_soon(self._after, self.fleet, self.router)
                self._over.set()
                group.cancel_scope.cancel()
        finally:
            await self._hang_up()

    async def _after(self, one: Living, other: Living) -> None:
        """The end of either is the end of both."""
        await one.ended()
        left = None if self._end_by is None else max(0.0, self._end_by - anyio.current_time())
        if other.state not in FINAL:
            await other.stop(left)

    async def _announce(self) -> None:
        """Say that the URL is served, in each life of the router, once it is."""
        registrar, wanted = self.registrar, self.fleet.size.min_healthy
        while True:
            await registrar.until(lambda: registrar.life not in (0, self._serving) and registrar.have >= wanted)
            life = registrar.life
            if await self._answers(life) and life == registrar.life:
                self._serving = life
                registrar.look()
                self._served(self.url)

    async def _answers(self, life: int) -> bool:
        """Ask the router for its model and one token until it gives them; False if its life ends before."""
        can = capabilities_of(self._adapter, self.config)
        facts = Capabilities(ready_paths=(MODELS,), reports_model=can.reports_model, generates=can.generates)
        prober = HttpProber(self.url, self._key)
        try:
            while life == self.registrar.life:
                found = await readiness(prober, facts, self.config)
                if isinstance(found, Ready):
                    return True
                if isinstance(found, NotYet):
                    await anyio.sleep(self.config.probe_interval)
                    continue
                if isinstance(found, WrongKey):
                    self._own = refused_key(self.url, found.status)
                else:
                    self._own = other_server(found.reason)
                await self.router.stop()
                break
            return False
        finally:
            with anyio.CancelScope(shield=True):
                await prober.aclose()

    async def _ask(self, call: Call) -> Answer:
        if self._control is None or self._control[0] != self.url:
            await self._hang_up()
            self._control = (self.url, HttpProber(self.url, self._routing.control_key))
        return await self._control[1].ask(call.method, call.path, call.body, CALL_TIMEOUT)

    async def _hang_up(self) -> None:
        if self._control is not None:
            with anyio.CancelScope(shield=True):
                await self._control[1].aclose()
            self._control = None


def routing_of(adapter: Adapter) -> Routing:
    """A backend's part that only a router has. Raises `ConfigError` if it is none."""
    if not all(hasattr(adapter, each) for each in ("control_key", "listing", "listed", "add", "remove")):
        raise ConfigError(
            f"router = {adapter.name!r} is a backend, but no router: it must have control_key, listing, listed, add "
            "and remove, see lifecycle.fleet.registry.Routing"
        )
    return cast(Routing, adapter)
