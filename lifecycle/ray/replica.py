"""One replica on a cluster: a place, a server in it, and the gate here through which requests reach it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from lifecycle import vigil
from lifecycle.adapter import EngineLoad
from lifecycle.attempt import backoff
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.driver import Activity, Disposition, Driver
from lifecycle.ending import drain_left, kill_left, stop_within
from lifecycle.gate import Gate
from lifecycle.journal import FileSink, Journal, Kind, Record
from lifecycle.living import Living
from lifecycle.ray.actor import News
from lifecycle.ray.chart import PLACEMENT
from lifecycle.ray.facts import Lost, NotPlaced, Placed, PlacementFacts, ServerEnded
from lifecycle.ray.mirror import Mirror
from lifecycle.ray.place import Cluster, NoPlace, Place, PlaceLost
from lifecycle.server_facts import BackoffOver, Ended, Facts, Fault, Kill, Shutdown
from lifecycle.service import Listener

Act = Activity[PlacementFacts]
FINAL = ("Stopped", "Failed")
UNREACHABLE = "Unreachable"
"""The state of a server that is Healthy as its actor sees it, and that cannot be reached from here."""
LOOK_AGAIN = 0.5
"""Seconds between two tries to reach one."""
UNREACHABLE_FOR = 60.0
"""Seconds after which it is given up where it is: nobody who matters can reach it."""
LATENESS = 10.0
"""Seconds more than its own limits that a server's end may take until the news of it are here."""


class RayReplica:
    """A server somewhere on a cluster. Implements `lifecycle.service.Replica`.

    Args:
        config: of the server, as it is to be on its node; its name is the replica's.
        cluster: where it is placed.
        needs: resources, by Ray's names.
        timeout: longest wait for them, in seconds.
        variables: set for the server besides the node's own.
        key: of the server.
        journal: a file to append to: its own journal as `NAME/ray`, and that of the server as NAME.
        listener: told of every record of both.
    """

    def __init__(
        self,
        config: ServerConfig,
        cluster: Cluster,
        needs: Mapping[str, float],
        *,
        timeout: float,
        variables: Mapping[str, str],
        key: str | None = None,
        journal: Path | str | None = None,
        listener: Listener = lambda record: None,
    ) -> None:
        self.config = config
        self.gate = Gate(config.label)
        self._cluster = cluster
        self._needs = needs
        self._timeout = timeout
        self._variables = variables
        self._key = key
        self._listener = listener
        self._sink = FileSink(Path(journal)) if journal else None
        self.journal = Journal(f"{config.label}/ray", [self._sink] if self._sink else [])
        self.driver: Driver[PlacementFacts] = Driver(
            PLACEMENT,
            PlacementFacts(config.max_attempts, config.attempt_window),
            {each.__name__: each for each in (self.hold_place, self.follow_server, self.wind_down, self.back_off)},
            self.journal,
            fault=Fault,
            shutdown=Shutdown(),
            force=self._force,
        )
        self.journal.listen(self._follow)
        self.journal.listen(listener)
        self._mirror = Mirror(config.label)
        self._place: Place | None = None
        self._earlier = 0
        self._lacks = ""
        self._unreachable = False
        self._doubts = anyio.Event()
        self.gate.look = self._doubt
        self._living = Living("RayReplica", config.label, self.driver, self.journal)

    async def __aenter__(self) -> Self:
        await self._living.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._living.end()

    async def healthy(self) -> str:
        """See `lifecycle.service.Living`; the URL."""
        await self.gate.opened()
        return self.url

    async def stop(self, within: float | None = None) -> Disposition:
        """See `lifecycle.service.Living`."""
        return await self.driver.send(stop_within(self.config, within))

    async def kill(self) -> Disposition:
        """See `lifecycle.service.Living`."""
        return await self.driver.send(Kill())

    async def ended(self) -> str:
        """See `lifecycle.service.Living`."""
        await self.driver.ended()
        return self.driver.state

    async def load(self) -> EngineLoad | None:
        """See `lifecycle.service.Living`."""
        place = self._place
        if place is None or not self.gate.is_open:
            return None
        try:
            return await place.load()
        except PlaceLost:
            return None

    @property
    def state(self) -> str:
        """The place's own state; while it hosts a server, that of the server, or "Unreachable"."""
        if self.driver.state != "Hosting":
            return self.driver.state
        if self._unreachable and self._mirror.state == "Healthy":
            return UNREACHABLE
        return "Draining" if self._mirror.state in FINAL else self._mirror.state

    @property
    def url(self) -> str:
        return self._mirror.url

    @property
    def node(self) -> str:
        """The address of its node; empty while it has none."""
        return self._place.node if self._place is not None else ""

    @property
    def waiting_for(self) -> str:
        """See `lifecycle.service.Living`."""
        if self.driver.state == "Placing":
            return self._lacks or "the cluster"
        if self.driver.state == "Draining" and self.gate.in_flight:
            return f"{self.gate.in_flight} requests in flight"
        return f"on {self.node}" if self.node else ""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """See `lifecycle.service.Living`."""
        return self.driver.facts.diagnosis or self._mirror.facts.diagnosis

    @property
    def starts(self) -> int:
        """How many starts of servers were begun, at all places so far."""
        return self._earlier + self._mirror.facts.attempt

    def _follow(self, record: Record) -> None:
        if record.kind in (Kind.TRANSITION, Kind.INTERNAL):
            self._move_gate()

    def _move_gate(self) -> None:
        own, server = self.driver.facts, self._mirror.facts
        facts = replace(
            server, stopping=own.stopping or server.stopping, drain_by=own.drain_by, kill_by=own.kill_by,
            diagnosis=own.diagnosis or server.diagnosis,
        )  # fmt: skip
        self.gate.follow(self.state, facts, self._mirror.url)

    async def hold_place(self, act: Act) -> None:
        def lacks(text: str) -> None:
            self._lacks = text
            act.note(phase=text)

        self._lacks = ""
        try:
            async with self._cluster.joined():
                place = await self._cluster.take(self._needs, self._timeout, lacks, act.facts.avoid)
                try:
                    said = await place.start(self.config, self._variables, self._key)
                    if said:
                        advice = "what the configuration names must be there on every node"
                        raise NoPlace(Diagnosis("config", f"on node {place.node}: {said}", Verdict.HOPELESS, advice))
                    self._earlier += self._mirror.facts.attempt
                    self._mirror, self._place = Mirror(self.config.label), place
                    where = f"on node {place.node}, actor's process {place.pid}"
                    act.post(Placed(place.node, place.pid, where, place.node_id))
                    await anyio.sleep_forever()
                finally:
                    self._place = None
                    with anyio.CancelScope(shield=True):
                        await place.release()
        except NoPlace as error:
            act.post(NotPlaced(error.diagnosis))
        except PlaceLost as error:
            act.post(NotPlaced(Diagnosis("actor-lost", f"the actor has gone before its server was begun: {error}")))

    async def follow_server(self, act: Act) -> None:
        place = self._place
        assert place is not None
        async with anyio.create_task_group() as group:
            group.start_soon(self._reach, act, place, group)
            await self._hear(act, place)
            group.cancel_scope.cancel()

    async def _hear(self, act: Act, place: Place) -> None:
        """Take the news of the server until it has ended."""
        latest = 0
        while self._mirror.state not in FINAL:
            try:
                told = await place.news(latest)
            except PlaceLost as error:
                self._lose(act, Diagnosis("actor-lost", f"the actor on node {place.node} has gone: {error}"))
                return
            for news in told:
                latest = news.number
                self._take(news)
        found = self._mirror.facts.diagnosis if self._mirror.state == "Failed" else None
        act.post(ServerEnded(found))

    async def _reach(self, act: Act, place: Place, group: TaskGroup) -> None:
        """When requests are broken off, find out whether the server can be reached: a node that has died is known to be
        dead up to half a minute later, and no request must spend its attempts there meanwhile."""
        self._unreachable, since = False, None
        while True:
            if self._mirror.state != "Healthy" or not (self.gate.doubted or self._unreachable):
                since, self._unreachable = None, False
                await self._doubts.wait()
                continue
            reached = await place.answers(self._mirror.url)
            if reached:
                self.gate.trust()
            if reached is self._unreachable:
                self._unreachable = not reached
                self._move_gate()
            if reached:
                continue
            since = anyio.current_time() if since is None else since
            if anyio.current_time() >= since + UNREACHABLE_FOR:
                why = f"{self._mirror.url} on node {place.node} could not be reached for {UNREACHABLE_FOR:g} s"
                self._lose(act, Diagnosis("unreachable", why))
                group.cancel_scope.cancel()
            await anyio.sleep(LOOK_AGAIN)

    def _doubt(self) -> None:
        """A request was broken off."""
        self._doubts.set()
        self._doubts = anyio.Event()

    def _take(self, news: News) -> None:
        was_open = self.gate.is_open
        self._mirror.take(news)
        self._tell(news.record)
        if was_open and self._mirror.state != "Healthy" and not self._mirror.facts.graceful:
            self.gate.cut()  # it answers nobody any more

    def _lose(self, act: Act, found: Diagnosis) -> None:
        for record in self._mirror.lost(found, act.now):
            self._tell(record)
        self.gate.cut()
        act.post(Lost(found))

    def _tell(self, record: Record) -> None:
        """Of the server's life, which goes on elsewhere."""
        if self._sink is not None:
            self._sink.write(record)
        self._follow(record)
        self._listener(record)

    async def wind_down(self, act: Act) -> None:
        config, began = self.config, act.now

        def until_kill() -> float:
            return kill_left(act.facts, config, began, act.now)

        if self._place is not None and act.facts.stopping and not act.facts.killed and not act.facts.over:
            async with vigil.moving(lambda: drain_left(act.facts, config, began, act.now), self.gate):
                await self.gate.empty()
            act.note(phase="drained", left=self.gate.in_flight)
        self.gate.cut()
        place = self._place
        if place is not None and not act.facts.over:
            async with vigil.moving(lambda: until_kill() + LATENESS, self.gate):
                with suppress(PlaceLost):  # nothing is left to be told then
                    while not act.facts.over:
                        seen = act.facts
                        await (place.kill() if seen.killed else place.stop(until_kill()))
                        await self.gate.until(partial(_changed, act, seen))
        act.post(Ended())

    async def back_off(self, act: Act) -> None:
        await anyio.sleep(backoff(act.facts.failures, self.config, random.random()))
        act.post(BackoffOver())

    async def _force(self, activity: str) -> None:
        """A cleanup hangs: kill what it may be waiting for."""
        if self._place is not None:
            await self._place.kill()


def _changed(act: Act, seen: PlacementFacts, of_gate: Facts) -> bool:
    return act.facts is not seen
