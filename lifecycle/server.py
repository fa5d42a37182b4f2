"""One server: its configuration, its life, and requests to it.

    async with Server(config) as server:
        answer = await server.chat({"messages": [{"role": "user", "content": "Hello"}]})

Entering returns at once and the start goes on in the background; requests wait for it. Leaving always drains and
releases, also after an exception and when cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from lifecycle.activities import Activities
from lifecycle.adapter import Adapter, EngineLoad, capabilities_of, load_adapter
from lifecycle.client import Client
from lifecycle.config import ServerConfig, check
from lifecycle.diagnosis import Diagnosis
from lifecycle.driver import Disposition, Driver
from lifecycle.ending import stop_within
from lifecycle.errors import Draining, StartFailed, StokerError
from lifecycle.gate import Gate
from lifecycle.host import Host
from lifecycle.journal import FileSink, Journal, Kind, Record, Snapshot
from lifecycle.living import Living
from lifecycle.requests import Requests
from lifecycle.resources.probes import api_root
from lifecycle.secrets import api_key
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Facts, Fault, Kill, Shutdown, Sleep, Wake
from lifecycle.vigil import ASLEEP, load_now


class Server(Requests):
    """A server with a life of its own, from Idle to Stopped or Failed.

    Args:
        config: what to run, and how. Checked here; raises `ConfigError`.
        adapter: the backend. Default: the installed one that `config.backend` names.
        host: the machine to run it on. Default: this one.
        journal: a file to append the journal to. Default: none.
        listener: called with every journal record; must be quick.
        gate: through which requests reach it, if somebody else opens and shuts it. Default: its own, open while it is
            Healthy.
        attach: take over a server of this name whose manager has died, if one is kept (`keep_for`), instead of starting
            another one. One that is kept and was started with other settings is refused: `StartFailed`.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        adapter: Adapter | None = None,
        host: Host | None = None,
        journal: Path | str | None = None,
        listener: Callable[[Record], None] | None = None,
        gate: Gate | None = None,
        attach: bool = False,
    ) -> None:
        self.config = config
        self.adapter = adapter or load_adapter(config.backend)
        check(config, self.adapter)
        if host is None:
            from lifecycle.resources.local import LocalHost

            host = LocalHost.of(config)
        self.host = host
        if self.adapter.capabilities.local:
            _ = host.state_dir  # raises now if it cannot be used, not in the middle of a start
        self._key = key = api_key(config)
        self.gate = gate or Gate(config.label)
        self.journal = Journal(config.label, [FileSink(Path(journal))] if journal else [])
        self.client = Client(
            self.gate, api_key=key, request_timeout=config.request_timeout, max_retries=config.max_retries
        )
        self.activities = Activities(config, self.adapter, host, self.gate, api_key=key)
        if config.base_url:
            self.activities.url = api_root(config.base_url)
        can = capabilities_of(self.adapter, config)
        self.driver: Driver[Facts] = Driver(
            SERVER,
            Facts(
                local=can.local,
                can_sleep=can.sleep is not None and can.probed,
                probed=can.probed,
                attaches=attach and can.local,
                keeps=config.keep_for > 0,
                idles=config.idle_timeout is not None,
                sleeps_when_idle=config.idle_action == "sleep",
                max_attempts=config.max_attempts,
                attempt_window=config.attempt_window,
            ),
            self.activities.table(),
            self.journal,
            fault=Fault,
            shutdown=Shutdown(),
            force=self.activities.force,
        )
        if gate is None:
            self.journal.listen(self._follow)
        self._waking = False
        self.gate.want = self._want
        if listener is not None:
            self.journal.listen(listener)
        self._living = Living("Server", config.label, self.driver, self.journal)

    async def __aenter__(self) -> Self:
        await self._living.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._living.end(self.client.aclose)

    async def healthy(self) -> str:
        """Wait until requests are served; the base URL, without /v1.

        Raises `StartFailed` if the server was given up and `Draining` if it was stopped instead.
        """
        self._living.check_begun()
        await self.gate.opened()
        return self.url

    async def stop(self, within: float | None = None) -> Disposition:
        """Drain and end. Returns when the drain has begun; `ended()` waits for the end. Can be called again.

        Args:
            within: seconds after which somebody else ends everything, such as a batch system at the end of a job: the
                drain then takes what time there is, at most `drain_timeout` if that is set. Called again with another
                number, the last one holds. Default: as configured.
        """
        return await self.driver.send(stop_within(self.config, within))

    async def kill(self) -> Disposition:
        """End now, whatever is in flight. Cuts a drain short."""
        return await self.driver.send(Kill())

    async def sleep(self) -> None:
        """Let the requests in flight finish (`drain_timeout`), then have the engine give its memory back, weights too.

        Requests that come meanwhile wait until `wake`. Returns when the engine sleeps. Raises `StokerError` if it
        cannot sleep, is not Healthy, or would not fall asleep.
        """
        if not self.driver.facts.can_sleep:
            raise StokerError(
                f"server {self.config.label!r} cannot sleep: its engine must be started so that it can (backend vllm: "
                "sleep_mode = true, sglang: memory_saver = true)"
            )
        seen = self.journal.seq
        if await self.driver.send(Sleep()) is not Disposition.TAKEN:
            raise StokerError(f"server {self.config.label!r} is {self.state}; only a Healthy one can be put to sleep")
        record = await self.journal.wait(_slept_or_went, after=seen)
        if record.kind is not Kind.PHASE:
            raise StokerError(f"server {self.config.label!r} did not fall asleep: {self.diagnosis or record.event}")

    async def wake(self) -> None:
        """Wake a server that sleeps, and wait until it is verified to serve again. Raises like `healthy`."""
        await self.driver.send(Wake())
        await self.gate.opened()

    async def ended(self) -> str:
        """Wait for the final state and return it: "Stopped" or "Failed". Everything is released by then."""
        await self.driver.ended()
        return self.driver.state

    @property
    def state(self) -> str:
        return self.driver.state

    @property
    def url(self) -> str:
        """The base URL of the server's present life, without /v1. It changes with a restart."""
        return self.activities.url

    @property
    def waiting_for(self) -> str:
        """What the present state waits for, for people; empty if that is not known or nothing is waited for."""
        if self.state == "Locking":  # whom, and which cache
            last = self.journal.records[-1] if self.journal.records else None
            found = last.detail if last is not None and last.kind is Kind.PHASE else {}
            return "; ".join(str(found[key]) for key in ("phase", "key") if found.get(key))
        if self.state == "Starting":
            phase = self.activities.phase
            return "; ".join(filter(None, (phase.name if phase else "", self.activities.missing)))
        if self.state in ("Asleep", "Dormant"):
            return f"{self.gate.in_flight} requests in flight" if self.gate.in_flight else "somebody who wants it"
        if self.state == "Draining":
            return f"{self.gate.in_flight} requests in flight" if self.gate.in_flight else "its processes to end"
        return ""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why the last attempt failed, if one has."""
        return self.driver.facts.diagnosis

    @property
    def starts(self) -> int:
        """How many starts were begun so far."""
        return self.driver.facts.attempt

    def snapshot(self) -> Snapshot[Facts]:
        return self.driver.snapshot()

    async def load(self) -> EngineLoad | None:
        """What the engine says that it works on; None if it is not Healthy, or does not say."""
        path = capabilities_of(self.adapter, self.config).load_path
        if path is None or not self.gate.is_open:
            return None
        prober = self.host.prober(self.url, self._key)
        try:
            return await load_now(prober, self.adapter, path, self.config.probe_timeout)
        finally:
            await prober.aclose()

    def _want(self) -> None:
        """Somebody waits for it: one that rests because nobody needed it must not go on resting."""
        facts = self.driver.facts
        if facts.idle and not facts.wanted and not self._waking:
            self._waking = True
            self.driver.post(Wake())

    def _follow(self, record: Record) -> None:
        if record.kind in (Kind.TRANSITION, Kind.INTERNAL):
            self._waking = False
            self.gate.follow(self.driver.state, self.driver.facts, self.url)


def _slept_or_went(record: Record) -> bool:
    asleep = record.kind is Kind.PHASE and record.detail.get("phase") == ASLEEP
    return asleep or (record.kind is Kind.TRANSITION and record.before == "Asleep")


__all__ = ["Draining", "Server", "StartFailed"]
