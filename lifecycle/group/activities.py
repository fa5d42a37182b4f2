"""What the head of a group does in each state: the activities of `lifecycle.group.chart`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import anyio

from lifecycle.attempt import backoff
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.driver import Activity, ActivityFunction
from lifecycle.ending import BEFORE_READY_GRACE, LEAST_GRACE, kill_left, stop_within
from lifecycle.errors import ConfigError, PortTaken
from lifecycle.gate import Gate
from lifecycle.group.crew import Crew, Part, of_member
from lifecycle.group.facts import (
    AllEnded,
    AllHealthy,
    Gathered,
    GroupFacts,
    HostLeaves,
    MeetingFailed,
    MemberLost,
    NotGathered,
    PortFailed,
)
from lifecycle.group.meeting import Meeting
from lifecycle.group.messages import Dismiss
from lifecycle.group.plan import Place
from lifecycle.group.roles import Role
from lifecycle.group.settings import GroupConfig
from lifecycle.host import Host
from lifecycle.server_facts import BackoffOver, Kill, Stop

Act = Activity[GroupFacts]

TELLING = 2.0
"""Seconds that the end of a member may take to be told, beyond what it takes itself."""


class GroupActivities:
    """The activities of one group, and what they hold for it."""

    def __init__(
        self,
        config: ServerConfig,
        group: GroupConfig,
        role: Role,
        host: Host,
        gate: Gate,
        meeting: Meeting,
        crew: Crew,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self.group = group
        self.role = role
        self.host = host
        self.gate = gate
        self.meeting = meeting
        self.crew = crew
        self._roll = roll
        self._place: Place | None = None
        self._placed = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._at_work = anyio.Event()
        self.leaves: Callable[[int, float | None], None] = _nobody

    def table(self) -> Mapping[str, ActivityFunction[GroupFacts]]:
        """The activities by the names that the chart's spans use."""
        functions = (
            self.meet, self.gather, self.hold_port, self.watch_members, self.start_members, self.wind_down,
            self.back_off,
        )  # fmt: skip
        return {function.__name__: function for function in functions}

    async def force(self, activity: str) -> None:
        """A cleanup hangs: kill what it may be waiting for."""
        for part in self.crew.parts:
            part.end(Kill())

    async def meet(self, act: Act) -> None:
        def leaves(rank: int, within: float | None) -> None:
            stop = stop_within(self.config, within)
            act.post(HostLeaves(rank, stop.drain, stop.kill))

        self.leaves = leaves
        connections = anyio.CancelScope(shield=True)  # they live until the last words have been said

        async def hold() -> None:
            with connections:
                try:
                    await self.meeting.hold(self.role.head, self.role.port)
                except ConfigError as error:
                    act.post(MeetingFailed(Diagnosis("meeting", str(error), Verdict.HOPELESS)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            try:
                await anyio.sleep_forever()
            finally:
                self.leaves = _nobody
                with anyio.CancelScope(shield=True):
                    await self.meeting.end(dismissal(act.facts))
                connections.cancel()

    async def gather(self, act: Act) -> None:
        crew, meeting = self.crew, self.meeting
        with anyio.move_on_after(self.group.gather_timeout):
            # A host whose connection is slow is there, and may not have heard yet that the last attempt is over.
            await crew.until(lambda: not meeting.missing and all(part.gone for part in crew.parts))
            act.post(Gathered())
            return
        ranks = meeting.missing or sorted({part.member.rank for part in crew.parts if not part.gone})
        did_not = (
            f"come to {self.role.head}, port {self.role.port}," if meeting.missing
            else "say that what they ran in the last attempt has ended"
        )  # fmt: skip
        refused = f"; {meeting.refused}" if meeting.refused else ""
        found = Diagnosis(
            "hosts-missing",
            f"rank {', '.join(map(str, ranks))} of {self.role.nodes} hosts did not {did_not} "
            f"within gather_timeout = {self.group.gather_timeout:g} s{refused}",
            Verdict.HOPELESS,
            "start the same command on every host, with --head naming this one, and let the port through; raise "
            "gather_timeout if they only need more time",
        )
        act.post(NotGathered(found))

    async def hold_port(self, act: Act) -> None:
        address = self._head_address()
        try:
            ports = await self.host.hold_ports(address, self.config.head_port, 1)
        except (PortTaken, OSError) as error:
            act.post(PortFailed(Diagnosis("ports", f"at {address}: {error}", Verdict.HOPELESS)))
            return
        try:
            own = self.config.node_address or address
            self._place = Place(own, address, ports.numbers[0])
            self._placed.set()
            await anyio.sleep_forever()
        finally:
            self._place, self._placed = None, anyio.Event()
            ports.release()

    def _head_address(self) -> str:
        """The literal address at which the other hosts reach this one: the one that they came to."""
        came_to = [guest.link.local_address for guest in self.meeting.present.values() if guest.link.local_address]
        return self.config.head_address or self.config.node_address or next(iter(came_to), "127.0.0.1")

    async def watch_members(self, act: Act) -> None:
        crew = self.crew
        for part in crew.parts:
            part.forget()
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._at_work.set()
                await crew.until(lambda: crew.first_lost() is not None)
                lost = crew.first_lost()
                assert lost is not None
                act.post(MemberLost(lost.member.name, of_member(lost)))
                await anyio.sleep_forever()
        finally:
            self._tasks, self._at_work = None, anyio.Event()
            for part in crew.parts:  # those of this host have ended with their tasks
                if not part.gone:
                    part.end(Kill())

    async def start_members(self, act: Act) -> None:
        await self._placed.wait()
        await self._at_work.wait()
        place, tasks = self._place, self._tasks
        assert place is not None
        assert tasks is not None
        begun: list[Part] = []
        for part in self.crew.parts:
            act.note(phase=f"starting {part.member.name}", rank=part.member.rank)
            self.crew.begin(part, tasks, place, act.facts.attempt)
            begun.append(part)
            if not part.member.needs_next:
                await self.crew.until(lambda: all(one.state == "Healthy" for one in begun))
        act.post(AllHealthy(self.crew.serving.model))

    async def wind_down(self, act: Act) -> None:
        """The member that serves first, as long as it may take; then the others, which have nothing more to do."""
        crew = self.crew
        if not act.facts.graceful:
            self.gate.cut()
        serving = [part for part in crew.parts if part.member.serves]
        others = [part for part in crew.parts if not part.member.serves]
        if act.facts.killed:
            await self._end([*serving, *others], act, Kill(), LEAST_GRACE)
        elif act.facts.graceful:
            longest = LEAST_GRACE + kill_left(act.facts, self.config, act.now, act.now)
            await self._end(serving, act, self._stop(act), longest)
            await self._end(others, act, Stop(0.0, BEFORE_READY_GRACE), BEFORE_READY_GRACE)
        else:
            await self._end([*serving, *others], act, Stop(0.0, BEFORE_READY_GRACE), BEFORE_READY_GRACE)
        self.gate.cut()
        unseen = tuple(part.member.name for part in crew.parts if not part.gone)
        if unseen:
            act.note(phase=f"the end of {', '.join(unseen)} could not be seen: no word from its host")
        act.post(AllEnded(unseen))

    def _stop(self, act: Act) -> Stop:
        """What is left of the time that the group was given; None as configured."""
        facts, now = act.facts, act.now
        drain = None if facts.drain_by is None else max(0.0, facts.drain_by - now)
        return Stop(drain, None if facts.kill_by is None else max(0.0, facts.kill_by - now))

    async def _end(self, parts: list[Part], act: Act, how: Stop | Kill, limit: float) -> None:
        """End these, and wait until each is seen to be gone. A host that is not there has as long as it needs to find
        out by itself that the head has gone."""
        for part in parts:
            if not part.gone:
                part.end(how)
        told = self.group.heartbeat_interval + TELLING
        with anyio.move_on_after(limit + told):
            await self.crew.until(lambda: all(part.gone for part in parts))
            return
        for part in parts:
            if not part.gone:
                part.end(Kill())
        with anyio.move_on_after(TELLING):
            await self.crew.until(lambda: all(part.gone for part in parts))

    async def back_off(self, act: Act) -> None:
        await anyio.sleep(backoff(act.facts.failures, self.config, self._roll()))
        act.post(BackoffOver())


def _nobody(rank: int, within: float | None) -> None:
    """Nobody asks."""


def dismissal(facts: GroupFacts) -> Dismiss:
    """How the group has ended, for the other hosts."""
    return Dismiss(None if facts.stopping and not facts.faults else facts.diagnosis)
