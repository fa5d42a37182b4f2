"""A member on this host, attempt by attempt: a `Server`, and what is to be known of it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from lifecycle.adapter import Adapter, load_adapter
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import StokerError
from lifecycle.gate import Gate
from lifecycle.group.plan import Member, Place, placed
from lifecycle.host import Host
from lifecycle.journal import Kind, Record
from lifecycle.server import Server
from lifecycle.server_facts import Kill, Stop
from lifecycle.service import Listener

UNBEGUN, BEGUN = "", "Begun"
"""States of a part before its server has one."""
GONE = ("Stopped", "Failed")


@dataclass(frozen=True)
class Site:
    """What servers on this host are made with."""

    label: str
    """The group's name."""
    host: Host | None = None
    """Default: this machine."""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    """By backend; others are loaded."""
    journal: str | None = None
    """A file to append all journals to."""
    listener: Listener = lambda record: None


class LocalPart:
    """One member, on this host.

    Args:
        changed: called at each change of what is to be seen here.
        gate: through which requests reach this member; None: none do.
    """

    def __init__(self, member: Member, site: Site, changed: Callable[[], None], gate: Gate | None = None) -> None:
        self.member = member
        self.state = UNBEGUN
        self.diagnosis: Diagnosis | None = None
        self.model = ""
        self.phase = ""
        self.server: Server | None = None
        self._site = site
        self._changed = changed
        self._gate = gate
        self._asked: Stop | Kill | None = None

    def forget(self) -> None:
        """What became of it in an earlier attempt does not matter any more."""
        self.state, self.diagnosis, self.model, self.phase, self._asked = UNBEGUN, None, "", "", None

    def begin(self, tasks: TaskGroup, place: Place) -> None:
        """Start it, in `tasks`."""
        self.forget()
        self.state = BEGUN
        tasks.start_soon(self._run, place, name=f"member {self.member.name}")
        self._changed()

    def end(self, how: Stop | Kill) -> None:
        """End it: drain first, or kill. Can be called again, with less time."""
        self._asked = how
        if self.server is not None:
            self.server.driver.post(how)

    @property
    def gone(self) -> bool:
        """Nothing of it is left on this host."""
        return self.state in (UNBEGUN, *GONE)

    @property
    def lost(self) -> bool:
        """It is not there any more, or soon will not be, and nobody has asked for that."""
        return self.state in ("Draining", "Backoff", *GONE) and self._asked is None

    @property
    def waiting_for(self) -> str:
        """See `Server.waiting_for`."""
        return self.server.waiting_for if self.server is not None else ""

    async def _run(self, place: Place) -> None:
        site, config = self._site, placed(self.member, place, self._site.label)
        try:
            adapter = site.adapters.get(config.backend) or load_adapter(config.backend)
            server = Server(
                config, adapter=adapter, host=site.host, journal=site.journal, listener=self._hear, gate=self._gate
            )
            self.server = server
            if self._asked is not None:
                server.driver.post(self._asked)
            try:
                async with server:
                    try:
                        await server.ended()
                    except anyio.get_cancelled_exc_class():
                        server.driver.post(Kill())
                        raise
            finally:
                self.server = None
                self.state, self.diagnosis = server.state, server.diagnosis
        except (StokerError, OSError) as error:
            self.state, self.diagnosis = "Failed", Diagnosis("configuration", str(error), Verdict.HOPELESS)
        finally:
            self._changed()

    def _hear(self, record: Record) -> None:
        self._site.listener(record)
        if record.kind is Kind.PHASE:
            self.phase = str(record.detail.get("phase"))
        elif record.kind in (Kind.TRANSITION, Kind.INTERNAL) and self.server is not None:
            facts = self.server.driver.facts
            self.state, self.diagnosis = self.server.state, facts.diagnosis
            if self.state in GONE:  # `_run` says so when all is released
                self.state = "Draining"
            self.model, self.phase = facts.model, ""
        self._changed()


