"""What a server does in each state: the only place where anything happens.

Each method is one activity of `lifecycle.server_chart`: it starts when its span is entered, reports by posting an
event, and is cancelled when its span is left; what it holds is given back in its `finally`. It asks the adapter what to
do and the host to do it.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from math import inf

import anyio

from lifecycle import vigil
from lifecycle.adapter import Adapter, Launch, Phase, Prepared, capabilities_of
from lifecycle.adopting import Adoption
from lifecycle.attempt import Attempt, backoff
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict, without_clock
from lifecycle.driver import Activity, ActivityFunction
from lifecycle.ending import BEFORE_READY_GRACE, LEAST_GRACE, drain_left, kill_left
from lifecycle.errors import ConfigError, LaunchError, PortTaken, StokerError
from lifecycle.failures import of_launch
from lifecycle.findings import (
    BROKEN_CACHE,
    endpoint_missing,
    other_server,
    refused_key,
)
from lifecycle.gate import Gate
from lifecycle.host import (
    HeldPorts,
    Host,
    Prober,
    Process,
    Spawn,
    base_url,
)
from lifecycle.locking import Locking
from lifecycle.probing import NotYet, Readiness, Ready, WrongKey, WrongServer, readiness
from lifecycle.secrets import known_secrets
from lifecycle.server_facts import (
    Awoke,
    BackoffOver,
    BecameReady,
    Ended,
    Exited,
    Facts,
    Idled,
    Launched,
    LaunchFailed,
    NotAsleep,
    NotReady,
    PortsFailed,
    Stalled,
    StartTimedOut,
    Unwell,
    Wanted,
)

Act = Activity[Facts]

EARLY_PROBE = 0.01
"""Seconds between the first probes of a phase; grows to `probe_interval` as it takes longer."""
MOST_LINES_REMEMBERED = 20_000
"""Different log lines remembered in one start; later ones count as progress each time."""
NOTE_PAUSE = 1.0
"""Seconds between two records of the same phase: progress bars of downloads move many times a second."""


class Activities:
    """The activities of one server, and what they hold for it."""

    def __init__(
        self,
        config: ServerConfig,
        adapter: Adapter,
        host: Host,
        gate: Gate,
        *,
        api_key: str | None = None,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self.adapter = adapter
        self._can = capabilities_of(adapter, config)
        self.host = host
        self.gate = gate
        self._api_key = api_key
        self._roll = roll
        self.url = config.base_url
        self.attempt = Attempt(config, adapter, host)
        self.phase: Phase | None = None
        self.adoption = Adoption(self)
        self.locking = Locking(config, adapter, host, self.adoption.must_start)
        self._ports: HeldPorts | None = None
        self._ports_held = anyio.Event()
        self._last_port: int | None = None
        self._progress_at = 0.0
        self.missing = ""
        """What the last readiness probe found wanting."""
        self._seen: set[int] = set()
        self._hint = anyio.Event()
        gate.look = self._look

    @property
    def process(self) -> Process | None:
        """The process of the present attempt, as long as it is not seen to be gone."""
        return self.attempt.process

    @property
    def prepared(self) -> Prepared:
        """What the backend found out before the present attempt."""
        return self.locking.prepared

    def table(self) -> Mapping[str, ActivityFunction[Facts]]:
        """The activities by the names that the chart's spans use."""
        functions = (
            self.locking.compile_lock, self.adoption.find_kept, self.hold_ports, self.launch, self.adoption.adopt,
            self.watch_process, self.read_log, self.adoption.entrust, self.await_ready, self.start_deadline,
            self.watch_liveness, self.watch_progress, self.watch_idle, self.rest, self.wind_down, self.await_wanted,
            self.back_off,
        )  # fmt: skip
        return {function.__name__: function for function in functions}

    async def force(self, activity: str) -> None:
        """A cleanup hangs: kill what it may be waiting for."""
        if self.process is not None:
            await self.process.end(0)

    async def hold_ports(self, act: Act) -> None:
        try:
            ports = await self._hold(act.facts)
        except (StokerError, OSError) as error:
            cause = "port-taken" if isinstance(error, PortTaken) else "ports"
            act.post(PortsFailed(Diagnosis(cause, str(error), Verdict.HOPELESS)))
            return
        try:
            self._ports = ports
            self._ports_held.set()
            await anyio.sleep_forever()
        finally:
            self._ports = None
            self._ports_held = anyio.Event()
            ports.release()

    async def _hold(self, facts: Facts) -> HeldPorts:
        """The port that was asked for; or the same as in the last attempt, for those who know it, if it can be had."""
        host, count, derived = self.config.host, 1 + self._can.extra_ports, self._can.derived_ports
        if facts.fits and self.adoption.kept is not None:
            return self.host.lease_ports(self.adoption.kept.keepsake.ports, derived)
        stolen = facts.diagnosis is not None and facts.diagnosis.cause == "port-taken"
        if self.config.port is None and self._last_port is not None and not stolen:
            with suppress(PortTaken):
                return await self.host.hold_ports(host, self._last_port, count, derived)
        return await self.host.hold_ports(host, self.config.port, count, derived)

    async def ports_are_held(self) -> None:
        await self._ports_held.wait()

    @property
    def port_numbers(self) -> tuple[int, ...]:
        """Those that are held now."""
        return self._ports.numbers if self._ports is not None else ()

    def took_over(self, process: Process, port: int) -> None:
        """A process that runs already is the present attempt's."""
        self.attempt.process, self._last_port, self.url = process, port, base_url(self.config.host, port)

    async def launch(self, act: Act) -> None:
        await self.ports_are_held()
        ports = self._ports
        assert ports is not None
        port, *extra = ports.numbers
        self._last_port = port
        attempt = act.facts.attempt
        try:
            command = self.attempt.command(Launch(self.config, port, tuple(extra), attempt, self.locking.prepared))
            if not self._can.holds_port:
                ports.let_go()
            log = self.host.attempt_log(self.config.label, attempt)
            secrets = known_secrets(self._api_key, os.environ, command.env)
            self.attempt.about_to_begin()
            what = Spawn(command, log, self.config.log_limit, self.config.label, self.host.state_dir, secrets)
            process = await self.host.spawn(what)
        except (LaunchError, ConfigError, OSError) as error:
            act.post(LaunchFailed(of_launch(error)))
            return
        self.attempt.process = process
        self.url = base_url(self.config.host, port)
        try:
            act.post(Launched(process.pid, port, str(process.log)))
            await anyio.sleep_forever()
        finally:
            if act.facts.pid != process.pid:  # left by another event: Starting will not own it
                await self.attempt.end(0)

    async def watch_process(self, act: Act) -> None:
        process = self.process
        assert process is not None
        try:
            exit = await process.exited()
            act.post(Exited(self.attempt.why_exited(exit, act.facts)))
            await anyio.sleep_forever()
        finally:
            await self.attempt.end(0)

    async def read_log(self, act: Act) -> None:
        process = self.process
        self._seen.clear()
        self.phase, noted_at = None, -NOTE_PAUSE
        self._progress_at = anyio.current_time()
        assert process is not None
        async for line in process.lines():
            words = hash(without_clock(line))
            if words not in self._seen:  # a line that repeats ("still waiting") is no progress
                self._progress_at = anyio.current_time()
                if len(self._seen) < MOST_LINES_REMEMBERED:
                    self._seen.add(words)
            phase = self.adapter.phase(line)
            if phase is not None and phase != self.phase:
                new = self.phase is None or phase.name != self.phase.name or phase.done == phase.total
                self.phase, now = phase, anyio.current_time()
                if new or now >= noted_at + NOTE_PAUSE:
                    noted_at = now
                    act.note(phase=phase.name, done=phase.done, total=phase.total, unit=phase.unit)
                if new:
                    self._look()

    async def await_ready(self, act: Act) -> None:
        async with self.prober(self.url) as prober:
            began, met = anyio.current_time(), not act.facts.local
            so_far: Readiness = NotYet("nothing listens")
            while True:
                hint = self._hint
                if not act.facts.local or await prober.listening():
                    if not met:  # a stranger need not speak HTTP, nor answer at all
                        met = True
                        stranger = self.attempt.stranger(act.facts, named=True)
                        if stranger is not None:
                            act.post(NotReady(stranger))
                            return
                    so_far = await readiness(prober, self._can, self.config, so_far, self._await)
                    if not isinstance(so_far, NotYet) and self._decided(act, so_far):
                        return
                self.missing = so_far.reason if isinstance(so_far, NotYet) else ""
                interval = self.config.probe_interval
                if act.facts.local:
                    interval = min(interval, EARLY_PROBE + 0.01 * (anyio.current_time() - began))
                with anyio.move_on_after(interval):
                    await hint.wait()
                    began = anyio.current_time()  # something new: what comes next may come soon

    def _await(self, what: str) -> None:
        """That is missing now; what was wrong the last time says more, unless it was nothing."""
        if self.missing in ("", "nothing listens") or what == "no first token yet":
            self.missing = what

    def _decided(self, act: Act, found: Readiness) -> bool:
        """Report what readiness probing found; False if the listener is not there any more."""
        stranger = self.attempt.stranger(act.facts)
        if stranger is not None:
            act.post(NotReady(stranger))
            return True
        if isinstance(found, Ready):
            if self._ports is not None:
                self._ports.let_go()
            act.post(BecameReady(found.model, found.path))
        elif isinstance(found, WrongKey):
            act.post(NotReady(refused_key(self.url, found.status)))
        elif isinstance(found, WrongServer):
            act.post(NotReady(other_server(found.reason)))
        return True

    def _look(self) -> None:
        """Something is worth a look at once."""
        self._hint.set()
        self._hint = anyio.Event()

    async def start_deadline(self, act: Act) -> None:
        began = self._progress_at = anyio.current_time()
        config = self.config
        while True:
            now = anyio.current_time()
            left = began + config.startup_timeout - now
            quiet = self._progress_at + config.no_progress_timeout - now if act.facts.local else left
            if min(left, quiet) <= 0:
                break
            await anyio.sleep(min(left, quiet))
        if quiet <= 0 < left:
            cause, limit, what = "no-progress", "no_progress_timeout", "has shown nothing new for"
        else:
            cause, limit, what = "startup-timeout", "startup_timeout", "was not ready after"
        phase = f", in phase {self.phase.name!r}" if self.phase else ""
        where = f" at {self.url}" if not act.facts.local else ""
        missing = f"; last seen: {self.missing}" if self.missing else ""
        summary = f"server {config.label!r}{where} {what} {limit} = {getattr(config, limit):g} s{phase}{missing}"
        advice = f"raise {limit} if the server only needs more time"
        if act.facts.local:
            act.post(StartTimedOut(self.attempt.diagnose(cause, summary, advice, facts=act.facts)))
        else:
            act.post(StartTimedOut(endpoint_missing(cause, summary, advice, seen_before=bool(act.facts.model))))

    async def watch_liveness(self, act: Act) -> None:
        path = self._can.liveness_path or act.facts.ready_path
        async with self.prober(self.url) as prober:
            found = await vigil.until_unwell(
                prober, path, self.config, lambda: self.attempt.stranger(act.facts, named=True), lambda: self._hint,
                self.gate,
            )
        act.post(Unwell(self.attempt.diagnose("unwell", found, facts=act.facts) if isinstance(found, str) else found))

    async def watch_progress(self, act: Act) -> None:
        async with self.prober(self.url) as prober:
            seen = await vigil.until_stalled(prober, act.facts.model, self.config, self.adapter, self.gate)
        act.post(Stalled(self.attempt.diagnose("stalled", seen, facts=act.facts)))

    async def watch_idle(self, act: Act) -> None:
        async with self.prober(self.url) as prober:
            await vigil.until_unasked(prober, self.config, self.adapter, self.gate)
        act.post(Idled(self.config.idle_timeout or 0.0))

    async def await_wanted(self, act: Act) -> None:
        await self.gate.until(lambda facts: facts.wanted)
        act.post(Wanted())

    @asynccontextmanager
    async def prober(self, url: str) -> AsyncIterator[Prober]:
        """What asks a server questions, closed at the end."""
        prober = self.attempt.prober(url, self._api_key)
        try:
            yield prober
        finally:
            with anyio.CancelScope(shield=True):
                await prober.aclose()

    async def rest(self, act: Act) -> None:
        await self._drain(act)
        async with self.prober(self.url) as prober:
            self.adoption.about_to_sleep(act.note)
            said = await vigil.sleep_until_wanted(prober, self._can, self.config, self.gate, act.note)
        if said:
            act.post(NotAsleep(self.attempt.diagnose("not-asleep", said, facts=act.facts)))
        else:
            act.post(Awoke())

    async def wind_down(self, act: Act) -> None:
        config, began = self.config, act.now

        def left() -> float:
            return kill_left(act.facts, config, began, act.now)

        async with vigil.moving(lambda: left() + LEAST_GRACE, self.gate) as limit:
            grace = min(BEFORE_READY_GRACE, left())
            if act.facts.graceful:
                await self._drain(act)
                act.note(phase="drained", left=self.gate.in_flight)
                grace = max(LEAST_GRACE, left())
            await self.attempt.end(0 if act.facts.killed else grace)
        if limit.cancelled_caught:  # the end has come nearer meanwhile
            await self.attempt.end(0)
        self.gate.cut()
        found, cache = act.facts.diagnosis, self.locking.prepared.cache
        if found is not None and found.cause == BROKEN_CACHE and cache is not None:
            self.host.void_cache(cache)
        with anyio.move_on_after(inf if act.facts.kill_by is None else left()):  # nobody waits for the memory then
            if not act.facts.killed and not await self.attempt.memory_is_back():
                act.note(phase=f"GPU memory is still held after memory_timeout = {config.memory_timeout:g} s")
        act.post(Ended())

    async def _drain(self, act: Act) -> None:
        config, began = self.config, act.now
        async with self.prober(self.url) as prober:
            await vigil.drain(
                prober, self.adapter, self._can, config, self.gate,
                lambda: drain_left(act.facts, config, began, act.now),
            )  # fmt: skip

    async def back_off(self, act: Act) -> None:
        await anyio.sleep(0.0 if act.facts.quick else backoff(act.facts.failures, self.config, self._roll()))
        act.post(BackoffOver())
