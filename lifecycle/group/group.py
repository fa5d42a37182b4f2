"""A group of servers that is used like one: they start in order, fail together, and are started again together.

    role = role_of(2, rank, "head:29417", os.environ)                   # the same on every host but for the rank
    async with Group(replace(config, nodes=2), role) as group:          # on the head
        answer = await group.chat({"messages": [{"role": "user", "content": "Hello"}]})

The other hosts run a `lifecycle.group.worker.Worker`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from lifecycle.adapter import Adapter, EngineLoad, load_adapter
from lifecycle.client import Client
from lifecycle.config import ServerConfig, check
from lifecycle.diagnosis import Diagnosis
from lifecycle.driver import Disposition, Driver
from lifecycle.ending import stop_within
from lifecycle.errors import ConfigError
from lifecycle.gate import Gate
from lifecycle.group import settings
from lifecycle.group.activities import GroupActivities
from lifecycle.group.chart import GROUP
from lifecycle.group.crew import Crew
from lifecycle.group.facts import GroupFacts
from lifecycle.group.meeting import Meeting
from lifecycle.group.messages import digests
from lifecycle.group.network import Network, TcpNetwork
from lifecycle.group.part import Site
from lifecycle.group.plan import members_of
from lifecycle.group.roles import Role
from lifecycle.group.settings import GroupConfig
from lifecycle.host import Host
from lifecycle.journal import FileSink, Journal, Kind, Record
from lifecycle.living import Living
from lifecycle.requests import Requests
from lifecycle.resources.local import LocalHost
from lifecycle.secrets import api_key
from lifecycle.server_facts import Facts, Fault, Kill, Shutdown
from lifecycle.service import Listener


class Group(Requests):
    """The head of a group. Implements `lifecycle.service.Service` and `Replica`.

    Args:
        config: what the group runs; `config.nodes` hosts share it. Its members are named after it.
        role: where this host and the head are; its rank is 0.
        group: how the hosts meet.
        adapter, host: as for a `Server`; they hold for all members of this host.
        adapters: those of other backends that members have, by name. Default: the installed ones.
        journal: a file to append the journals of the group and of this host's members to.
        listener: called with every record of the group and of this host's members; must be quick.
        network: how the hosts reach each other. Default: TCP.
        environ: where the key that all hosts share is looked for.

    Raises `ConfigError` before anything is started.
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
        if role.rank != 0:
            raise ConfigError(f"this host has rank {role.rank}; only rank 0 is the head of a group")
        config = replace(config, nodes=role.nodes, node_rank=0)
        self.config = config
        self.role = role
        self.adapter = adapter or load_adapter(config.backend)
        check(config, self.adapter)
        settings.check(group)
        known = {config.backend: self.adapter, **(adapters or {})}
        self.host = host or LocalHost.of(config)
        self.gate = Gate(config.label)
        self.journal = Journal(config.label, [FileSink(Path(journal))] if journal else [])
        self.client = Client(
            self.gate,
            api_key=api_key(config),
            request_timeout=config.request_timeout,
            max_retries=config.max_retries,
        )
        listener = listener or (lambda record: None)
        site = Site(config.label, self.host, known, str(journal) if journal else None, listener)
        key = settings.group_key(group, environ)
        meeting = Meeting(role.nodes, digests(config), group, key, network or TcpNetwork(), self._note)
        plan = members_of(config, self.adapter)
        self.crew = Crew(plan, site, self.gate, meeting, lambda rank, within: self.activities.leaves(rank, within))
        self.crew.changed = self._follow
        self.activities = GroupActivities(config, group, role, self.host, self.gate, meeting, self.crew)
        self.driver: Driver[GroupFacts] = Driver(
            GROUP,
            GroupFacts(config.max_attempts, config.attempt_window),
            self.activities.table(),
            self.journal,
            fault=Fault,
            shutdown=Shutdown(),
            force=self.activities.force,
        )
        self.journal.listen(self._heard)
        self.journal.listen(listener)
        self._living = Living("Group", config.label, self.driver, self.journal)

    async def __aenter__(self) -> Self:
        await self._living.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._living.end(self.client.aclose)

    async def healthy(self) -> str:
        """Wait until requests are served; the base URL, without /v1. Raises like `Server.healthy`."""
        self._living.check_begun()
        await self.gate.opened()
        return self.url

    async def stop(self, within: float | None = None) -> Disposition:
        """Drain and end every member, on every host; see `Server.stop`."""
        return await self.driver.send(stop_within(self.config, within))

    async def kill(self) -> Disposition:
        """End now, whatever is in flight. Cuts a drain short."""
        return await self.driver.send(Kill())

    async def ended(self) -> str:
        """Wait for the final state and return it: "Stopped" or "Failed". Everything is released by then."""
        await self.driver.ended()
        return self.driver.state

    @property
    def state(self) -> str:
        return self.driver.state

    @property
    def url(self) -> str:
        """The base URL of the member that takes requests, without /v1. It changes with a restart."""
        server = self.crew.serving.server
        return server.url if server is not None else ""

    @property
    def waiting_for(self) -> str:
        """What the present state waits for, for people."""
        if self.state == "Gathering":
            missing = self.activities.meeting.missing
            if missing:
                refused = f"; {self.activities.meeting.refused}" if self.activities.meeting.refused else ""
                return (
                    f"rank {', '.join(map(str, missing))} to come to {self.role.head}, port {self.role.port}, for "
                    f"gather_timeout = {self.activities.group.gather_timeout:g} s at most{refused}"
                )
        if self.state == "Starting":
            late = next((part for part in self.crew.parts if part.state != "Healthy"), None)
            return "" if late is None else ": ".join(filter(None, (late.member.name, late.phase or late.state)))
        if self.state in ("Draining", "Gathering"):
            left = ", ".join(part.member.name for part in self.crew.parts if not part.gone)
            return f"{self.gate.in_flight} requests in flight" if self.gate.in_flight else f"the end of {left}"
        return ""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why the last attempt failed, if one has."""
        return self.driver.facts.diagnosis

    @property
    def starts(self) -> int:
        """How many starts of the whole group were begun so far."""
        return self.driver.facts.attempt

    async def load(self) -> EngineLoad | None:
        """What the engine says that it works on; None if it is not Healthy, or does not say."""
        server = self.crew.serving.server
        return None if server is None else await server.load()

    def _note(self, text: str) -> None:
        self.driver.note(Kind.PHASE, phase=text)

    def _heard(self, record: Record) -> None:
        if record.kind in (Kind.TRANSITION, Kind.INTERNAL):
            self._follow()

    def _follow(self) -> None:
        """The gate follows the group's state, and hears of each change of the member behind it."""
        facts = self.driver.facts
        seen = Facts(
            model=facts.model, healthy_since=facts.healthy_since, stopping=facts.stopping, graceful=facts.graceful,
            drain_by=facts.drain_by, kill_by=facts.kill_by, killed=facts.killed, diagnosis=facts.diagnosis,
        )  # fmt: skip
        self.gate.follow(self.driver.state, seen, self.url)
