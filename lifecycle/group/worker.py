"""A host of a group that is not its head: it joins the head, and runs its own members as the head says.

    async with Worker(replace(config, nodes=2), role) as worker:
        how = await worker.ended()      # "Stopped": ended in order; "Failed": see `worker.diagnosis`

What the head can ask for is small: start a member of this host's own plan, at an address and a port; end it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from lifecycle.adapter import Adapter, load_adapter
from lifecycle.config import ServerConfig, check
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.driver import Activity, Disposition, Driver
from lifecycle.ending import BEFORE_READY_GRACE
from lifecycle.errors import ConfigError, StartFailed
from lifecycle.group import settings
from lifecycle.group.joining import join
from lifecycle.group.link import Link
from lifecycle.group.messages import Begin, Dismiss, End, Leave, Message, News, WireError, checked, digests
from lifecycle.group.network import Network, TcpNetwork
from lifecycle.group.part import LocalPart, Site
from lifecycle.group.plan import Place, members_of
from lifecycle.group.roles import Role
from lifecycle.group.settings import GroupConfig
from lifecycle.group.worker_chart import WORKER
from lifecycle.group.worker_facts import Dismissed, HeadLost, Joined, NotJoined, WorkerFacts
from lifecycle.host import Host
from lifecycle.journal import FileSink, Journal
from lifecycle.living import Living
from lifecycle.resources.local import LocalHost
from lifecycle.server_facts import Ended, Fault, Kill, Shutdown, Stop
from lifecycle.service import Listener

Act = Activity[WorkerFacts]
LEFT_TO_THE_HEAD = 0.8
"""Of the time that a host has until it is ended by somebody else, the share in which the head may end it in order."""


class Worker:
    """One host's part in a group. Implements `lifecycle.service.Living`, but for requests.

    The arguments are those of a `Group`; `role.rank` is not 0. Raises `ConfigError` before anything is started.
    """

    def __init__(
        self,
        config: ServerConfig,
        role: Role,
        *,
        group: GroupConfig = settings.DEFAULTS,
        adapter: Adapter | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        host: Host | None = None,
        journal: Path | str | None = None,
        listener: Listener | None = None,
        network: Network | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if not 0 < role.rank < role.nodes:
            raise ConfigError(f"this host has rank {role.rank} of {role.nodes}; rank 0 is the head, and runs a Group")
        config = replace(config, nodes=role.nodes, node_rank=role.rank)
        self.config = config
        self.role = role
        self.group = group
        adapter = adapter or load_adapter(config.backend)
        check(config, adapter)
        settings.check(group)
        self._key = settings.group_key(group, environ)
        self._network = network or TcpNetwork()
        self._instance = secrets.token_hex(8)
        self.host = host or LocalHost.of(config)
        listener = listener or (lambda record: None)
        known = {config.backend: adapter, **(adapters or {})}
        site = Site(config.label, self.host, known, str(journal) if journal else None, listener)
        plan = members_of(config, adapter)
        self.parts = {
            member.name: LocalPart(member, site, self._changed) for member in plan if member.rank == role.rank
        }
        self.journal = Journal(f"{config.label}-host-{role.rank}", [FileSink(Path(journal))] if journal else [])
        self.driver: Driver[WorkerFacts] = Driver(
            WORKER,
            WorkerFacts(),
            {"host_members": self._host_members, "attend": self._attend, "wind_down": self._wind_down},
            self.journal,
            fault=Fault,
            shutdown=Shutdown(),
            force=self._force,
        )
        self.journal.listen(listener)
        self._link: Link | None = None
        self._attempt = 0
        self._members: TaskGroup | None = None
        self._at_work = anyio.Event()
        self._told: dict[str, News] = {}
        self._turn = anyio.Event()
        self._seen = ""
        self._living = Living("Worker", self.journal.server, self.driver, self.journal)

    async def __aenter__(self) -> Self:
        await self._living.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._living.end()

    async def stop(self, within: float | None = None) -> Disposition:
        """Ask the head to end the group in order, with this host's members in it; end them by itself if it has not
        done so in the time that the configuration allows for it, or `within` s."""
        return await self.driver.send(Stop(kill=within))

    async def kill(self) -> Disposition:
        """End the members of this host now."""
        return await self.driver.send(Kill())

    async def healthy(self) -> str:
        """Wait until the head has taken this host in; where the head is. Raises `StartFailed` if it was given up."""
        await self.journal.wait(lambda record: self.state in ("Present", "Stopped", "Failed"))
        if self.state == "Failed" and self.diagnosis is not None:
            raise StartFailed(self.diagnosis)
        return f"{self.role.head}:{self.role.port}"

    async def load(self) -> None:
        """Nothing is known here of the engine's work."""

    @property
    def starts(self) -> int:
        """How often the head has taken this host in."""
        return self.driver.facts.attempt

    async def ended(self) -> str:
        """Wait for the final state and return it: "Stopped" or "Failed". Nothing is left on this host by then."""
        await self.driver.ended()
        return self.driver.state

    @property
    def state(self) -> str:
        return self.driver.state

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why the group was given up, or this host could not join it."""
        return self.driver.facts.diagnosis

    @property
    def waiting_for(self) -> str:
        """What the present state waits for, for people."""
        if self.state == "Joining":
            seen = f"; last seen: {self._seen}" if self._seen else ""
            limit = f"gather_timeout = {self.group.gather_timeout:g} s"
            return f"the head at {self.role.head}, port {self.role.port}, for {limit} at most{seen}"
        if self.state == "Draining":
            return f"the end of {', '.join(name for name, part in self.parts.items() if not part.gone)}"
        return ""

    async def _force(self, activity: str) -> None:
        for part in self.parts.values():
            part.end(Kill())

    async def _host_members(self, act: Act) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._members = tasks
                self._at_work.set()
                await anyio.sleep_forever()
        finally:
            self._members, self._at_work = None, anyio.Event()

    async def _attend(self, act: Act) -> None:
        self._seen = ""
        joined = await join(
            self._network, self.role, digests(self.config), self.group, self._key, self._instance, self._see
        )
        if isinstance(joined, Diagnosis):
            act.post(NotJoined(joined))
            return
        link = joined
        self._link, self._attempt = link, 0
        self._told.clear()
        try:
            act.post(Joined(f"{self.role.head}:{self.role.port}"))
            await self._at_work.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._leave_when_asked, act, link)
                why = await self._listen(act, link)
                if why:
                    act.post(HeadLost(_head_lost(why)))
                await anyio.sleep_forever()
        finally:
            self._link = None
            await link.aclose()

    def _see(self, why: str) -> None:
        """Why the head was not joined just now."""
        self._seen = why

    async def _listen(self, act: Act, link: Link) -> str:
        """Do as the head says; why it cannot be heard any more, or "" if it has dismissed us."""
        dismissed = False

        def take(message: Message) -> None:
            nonlocal dismissed
            if isinstance(message, Dismiss):
                dismissed = True
                act.post(Dismissed(message.diagnosis))
            elif isinstance(message, Begin):
                self._start(checked(message), link)
            elif isinstance(message, End):
                how = Kill() if message.now else Stop(message.drain, message.kill)
                self._mine(message.member).end(how)

        try:
            why = await link.run(take)
        except WireError as error:
            why = str(error)
        return "" if dismissed else why

    def _start(self, begin: Begin, link: Link) -> None:
        part = self._mine(begin.member)
        if not part.gone:
            raise WireError(f"the head says to start {begin.member!r}, which runs")
        assert self._members is not None
        self._attempt = begin.attempt
        self._told.pop(begin.member, None)
        own = self.config.node_address or link.local_address
        part.begin(self._members, Place(own, begin.head_address, begin.head_port))

    def _mine(self, name: str) -> LocalPart:
        part = self.parts.get(name)
        if part is None:
            raise WireError(f"the head speaks of {name!r}, and this host has {', '.join(self.parts) or 'no member'}")
        return part

    async def _leave_when_asked(self, act: Act, link: Link) -> None:
        """Tell the head that this host was told to end, and give it the time to end the group in order."""
        await self.journal.wait(lambda record: self.driver.facts.stopping)
        by, now = act.facts.kill_by, act.now
        left = None if by is None else max(0.0, by - now)
        asked = None if left is None else left * LEFT_TO_THE_HEAD
        link.send(Leave(asked))
        await anyio.sleep(self.config.kill_limit + 2 * BEFORE_READY_GRACE if asked is None else asked)
        act.post(HeadLost(_head_lost("it did not end the group in time")))

    def _changed(self) -> None:
        """Something has become of a member: tell the head, unless it knows."""
        self._turn.set()
        self._turn = anyio.Event()
        for name, part in self.parts.items():
            news = News(name, self._attempt, part.state, part.model, part.phase, part.diagnosis)
            if part.state and self._link is not None and self._told.get(name) != news:
                self._told[name] = news
                self._link.send(news)

    async def _wind_down(self, act: Act) -> None:
        how = Kill() if act.facts.killed else Stop(0.0, BEFORE_READY_GRACE)
        for part in self.parts.values():
            if not part.gone:
                part.end(how)
        while not all(part.gone for part in self.parts.values()):
            await self._turn.wait()
        act.post(Ended())


def _head_lost(why: str) -> Diagnosis:
    return Diagnosis(
        "head-lost", f"the head has gone: {why}", Verdict.TRANSIENT,
        "look at the command on the head: it was killed, its host has gone, or the network has",
    )  # fmt: skip


__all__ = ["Worker"]
