"""Makes a simulated world take one path through the server's chart: it brings each event about, and sees it taken."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import anyio

from lifecycle.adopting import prints
from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis
from lifecycle.errors import LaunchError, PortTaken, StokerError
from lifecycle.host import Keepsake, NoAnswer
from lifecycle.journal import Kind, Record
from lifecycle.paths import Edge, Model, Path
from lifecycle.server_facts import (
    Adopted,
    Awoke,
    BackoffOver,
    BecameReady,
    Ended,
    Exited,
    Facts,
    Fault,
    FoundKept,
    Idled,
    Kill,
    Launched,
    LaunchFailed,
    LockAcquired,
    LockFailed,
    LockSkipped,
    NotAdopted,
    NotAsleep,
    NotReady,
    PortsFailed,
    Shutdown,
    Sleep,
    Stalled,
    Start,
    StartTimedOut,
    Stop,
    Unwell,
    Wake,
    Wanted,
)
from lifecycle.testing import Life, SimulatedProcess, Turn, server_model
from lifecycle.testing.server_model import HOPELESS, STOLEN, TRANSIENT
from tests.simulation.world import World

DORMANT = Life(listens=None, ready=None, term=None)
"""Does nothing by itself: not even end when it is asked to."""
LAST_WORDS = {
    HOPELESS.cause: "error: unrecognized arguments: --wrong",
    TRANSIENT.cause: "We couldn't connect to the hub",
    STOLEN.cause: "Address already in use",
}
BUG = RuntimeError("a bug")
IDLE = 100.0
"""Seconds until nobody needs it: longer than anything else that comes by itself."""
OF_THE_DEAD = 29_999
"""The port of a server whose manager has died."""


def can_happen(state: str, facts: Facts, event: Event) -> bool:
    """What activities report in the real world, and with which diagnosis."""
    if facts.has_served and state in ("Healthy", "Asleep") and event == Exited(HOPELESS):
        return False  # what a server printed while it served is no reason to give it up
    if not facts.probed and isinstance(event, LockAcquired | LockFailed | Unwell | Stalled):
        return False  # a part waits for no lock, and nobody asks it
    if isinstance(event, Awoke | NotAsleep):  # an engine that is not wanted sleeps on; one that is, wakes up
        return isinstance(event, Awoke) is facts.wanted
    if isinstance(event, FoundKept | Idled | Wanted):  # who looks for it, who watches for it, who is waited for
        return {FoundKept: facts.attaches, Idled: facts.idles, Wanted: facts.wanted}[type(event)]
    if isinstance(event, StartTimedOut):
        return (event == StartTimedOut(HOPELESS)) is not (facts.local or bool(facts.model))
    return facts.local or not (isinstance(event, Exited) or event == NotReady(STOLEN))  # no process, no port


def model() -> Model[Facts]:
    return replace(server_model(), possible=can_happen, times=(0.0,))


class Director:
    """Follows the journal: as soon as one event of the path is taken, it brings about the next, before anything else
    can happen."""

    def __init__(self, path: Path[Facts]) -> None:
        self.path = path
        self.local = path.facts.local
        facts = {"probed": path.facts.probed, **({} if path.facts.can_sleep else {"sleep": None})}
        settings: dict[str, Any] = {"keep_for": 60.0} if path.facts.keeps else {}
        if path.facts.idles:
            action = "sleep" if path.facts.sleeps_when_idle else "stop"
            settings |= {"idle_timeout": IDLE, "idle_action": action}
        self.world = World(
            DORMANT, endpoint=None if self.local else DORMANT, capabilities=facts, attach=path.facts.attaches,
            **settings,
        )  # fmt: skip
        self.done = 0
        self.strayed: list[str] = []
        self._lock, self._ports, self._spawn, self._find, self._adopt = Turn(), Turn(), Turn(), Turn(), Turn()
        self._in_flight = ExitStack()

    async def run(self) -> World:
        """Take the path; the world as it is at the end."""
        server = self.world.server
        server.journal.listen(self._heard)
        first = self.path.edges[0]
        if not isinstance(first.event, Start):
            server.driver.post(first.event)
        async with server:
            await server.ended()
        assert self.strayed == []
        assert self.done == len(self.path.edges)
        return self.world

    @property
    def _server(self) -> SimulatedProcess:
        there = self.world.host.process if self.local else self.world.host.endpoint
        assert there is not None
        return there

    def _heard(self, record: Record) -> None:
        if record.kind not in (Kind.TRANSITION, Kind.INTERNAL):
            return
        if self.done == len(self.path.edges):
            self._stray(f"{record.event} after the end of the path")
            return
        edge = self.path.edges[self.done]
        if (record.event, record.before, record.after) != (edge.row.event.__name__, edge.row.source, edge.row.target):
            self._stray(f"{record.event}: {record.before} → {record.after}, where the path has {edge.row}")
            return
        self.done += 1
        if record.kind is Kind.TRANSITION:
            self._prepare(edge.row.target)
        if self.done < len(self.path.edges):
            following = self.path.edges[self.done]
            self._bring_about(following, following.event)

    def _stray(self, how: str) -> None:
        if not self.strayed:
            self.world.server.driver.post(Kill())
        self.strayed.append(how)

    def _prepare(self, state: str) -> None:
        """Before the activities of a state begin: make them wait for what the director wants."""
        host = self.world.host
        if state == "Locking":
            self._lock, self._find = Turn(), Turn()
            host.forget_plans()
            host.plan("find_kept", self._find)
            host.plan("compile_lock", self._lock)
        elif state == "Adopting":
            self._adopt = Turn()
            host.plan("adopt", self._adopt)
        elif state == "PortBound":
            self._ports, self._spawn = Turn(), Turn()
            host.plan("hold_ports", self._ports)
            host.plan("spawn", self._spawn)
        elif state == "Starting" and not self.local:
            host.forget_plans()
            host.change_endpoint(DORMANT)
        elif state == "Asleep":  # it drains until the director lets it fall asleep
            self._in_flight.enter_context(self.world.server.gate.entered(anyio.CancelScope()))
        elif state == "Draining":
            self._in_flight.close()

    def _bring_about(self, edge: Edge[Facts], event: Event) -> None:
        """Synchronous: whatever it sets going is not yet seen by anybody."""
        match event:
            case Stop() | Kill() | Shutdown() | Sleep() | Wake():
                self.world.server.driver.post(event)
            case Fault():
                self._fault(edge.state, event)
            case LockAcquired() | LockSkipped() | LockFailed():
                self._decide_lock(event)
            case FoundKept(diagnosis=found):
                self._leave_one(fits=found is None)
            case Adopted() | NotAdopted() | PortsFailed() if edge.state == "Adopting":
                self._decide_adoption(event)
            case Launched() | LaunchFailed() | PortsFailed():
                self._decide_launch(event)
            case BecameReady():
                self._server.become_ready()
            case NotReady(diagnosis=found):
                wrong = replace(DORMANT, stolen=True) if found == STOLEN else replace(DORMANT, status=401)
                self._server.life = wrong
                self._server.become_ready()
            case Exited(diagnosis=found):
                self._server.exit(1, *self._last_words(found))
            case Awoke():
                self._in_flight.close()
            case NotAsleep():
                self._in_flight.close()
                self.world.host.plan("probe", Turn(0.0, NoAnswer("it has gone deaf")))
            case Unwell():
                self._server.become_deaf()
            case Stalled():
                self._in_flight.enter_context(self.world.server.gate.entered(anyio.CancelScope()))
                self._server.become_wedged()
            case Ended():
                if self.world.host.processes:
                    self._server.life = replace(self._server.life, term=0.0)
            case StartTimedOut() | BackoffOver() | Idled():
                pass  # time passes
            case Wanted():
                pass  # somebody has said so
            case _:
                raise AssertionError(f"nobody knows how to bring about {event}")

    def _last_words(self, found: Diagnosis) -> tuple[str, ...]:
        return (LAST_WORDS[found.cause],) if found.cause in LAST_WORDS else ()

    def _leave_one(self, *, fits: bool) -> None:
        """There is a server whose manager has died."""
        host, config = self.world.host, self.world.server.config
        left = SimulatedProcess(99, File("left.log"), replace(DORMANT, listens=0.0), OF_THE_DEAD, host._meet)
        settings = prints(config if fits else replace(config, model="another"))
        left.keep(Keepsake("Healthy", left.pid, (OF_THE_DEAD,), "left.log", settings), 60.0)
        host.leave(left)
        self._find.go()

    def _decide_adoption(self, event: Event) -> None:
        if isinstance(event, PortsFailed):
            self.world.host.taken_ports.add(OF_THE_DEAD)
        elif isinstance(event, NotAdopted):
            self._adopt.fail(StokerError("its keeper has gone"))
        else:
            self._adopt.go()

    def _decide_lock(self, event: Event) -> None:
        self._find.go()
        complete = self.world.host.complete_caches
        complete.discard("cache")
        if isinstance(event, LockFailed):
            self._lock.fail(StokerError("the file system has no locks"))
            return
        if isinstance(event, LockSkipped):
            complete.add("cache")
        self._lock.go()

    def _decide_launch(self, event: Event) -> None:
        if isinstance(event, PortsFailed):
            self._ports.fail(PortTaken(80, "somebody else"))
            return
        self._ports.go()
        if isinstance(event, LaunchFailed):
            self._spawn.fail(LaunchError("no such program"))
        else:
            self._spawn.go()

    def _fault(self, state: str, event: Fault) -> None:
        """An adapter's bug where one can bite; in the other states the event itself."""
        if state == "Locking":
            self._find.go()
            self._lock.fail(BUG)
        elif state == "Adopting":
            self._adopt.fail(BUG)
        elif state == "PortBound":
            self._ports.go()
            self._spawn.fail(BUG)
        elif state in ("Starting", "Healthy", "Asleep") and self.local:
            self.world.adapter.faults["phase"] = BUG
            self._server.say("phase wrong")
        elif state in ("Starting", "Healthy"):
            self.world.host.plan("probe", Turn(0.0, BUG))
        else:
            self.world.server.driver.post(event)


