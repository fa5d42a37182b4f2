"""Fleets of real echo servers: killed, restarted, counted."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.config import load_config
from lifecycle.fleet import Fleet
from lifecycle.journal import Record
from lifecycle.server import Server
from tests.fake import fake_command
from tests.served import GUARD, QUICK

pytestmark = pytest.mark.anyio
BUSY = fake_command(routes={"/v1/completions": [{"delay": 0.02}]})
"""A server that starts sooner than the echo server, and takes 20 ms for each answer."""


@asynccontextmanager
async def running(folder: Path, replicas: int, *, command: str = "", **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet whose replicas are all Healthy."""
    backend = "custom" if command else "echo"
    values = {"state_dir": str(folder / "state"), "command": command, **QUICK, **settings}
    config, adapter = load_config(backend, **{key: value for key, value in values.items() if value != ""})
    fleet = Fleet(config, replicas=replicas, min_healthy=1, adapter=adapter, journal=folder / "journal.jsonl")
    async with fleet:
        with anyio.fail_after(GUARD):
            await all_healthy(fleet)
        yield fleet
    assert list((folder / "state" / "servers").glob("*.json")) == []


async def all_healthy(fleet: Fleet) -> None:
    await fleet.dispatch.until(lambda: len(fleet.urls) == len(fleet.slots))


def record_of(server: Server) -> Record:
    return next(record for record in reversed(server.journal.records) if record.event == "Launched")


class Load:
    """Callers that ask one question after the other until they are told to stop."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.asked = 0
        self.answers: Counter[str] = Counter()
        self.stopped = False
        self.goal = anyio.Event()
        self._goal = 0

    async def work(self) -> None:
        while not self.stopped:
            self.asked += 1
            prompt = f"prompt {self.asked}"
            answer = await self.fleet.complete({"prompt": prompt, "max_tokens": 3})
            assert answer["choices"][0]["finish_reason"]
            self.answers[prompt] += 1
            if len(self.answers) >= self._goal:
                self.goal.set()

    async def until(self, more: int) -> None:
        """Return when so many more have been answered."""
        self._goal, self.goal = len(self.answers) + more, anyio.Event()
        with anyio.fail_after(GUARD):
            await self.goal.wait()


@asynccontextmanager
async def loaded(fleet: Fleet, workers: int) -> AsyncIterator[Load]:
    load = Load(fleet)
    async with anyio.create_task_group() as group:
        for _ in range(workers):
            group.start_soon(load.work)
        yield load
        load.stopped = True
    assert load.answers == Counter({f"prompt {number}": 1 for number in range(1, load.asked + 1)})


async def test_a_replica_that_is_killed_under_load_costs_no_answer(tmp_path: Path) -> None:
    async with running(tmp_path, 3, latency=0.05) as fleet:
        async with loaded(fleet, workers=24) as load:
            await load.until(100)
            server = fleet.slots[1].replica
            assert isinstance(server, Server)
            seen = server.journal.seq
            pid = record_of(server).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await load.until(100)
            with anyio.fail_after(GUARD):
                await server.driver.wait("Healthy", after=seen)
            await load.until(100)
        assert 0 < fleet.client.sent_again <= 2 * 24, "what was in flight there, and what found nobody there"
        assert fleet.starts == 4
        assert fleet.state == "Healthy"


async def test_all_replicas_but_one_may_die_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, 3, latency=0.05) as fleet, loaded(fleet, workers=12) as load:
        await load.until(50)
        for slot in fleet.slots[:2]:
            assert isinstance(slot.replica, Server)
            os.kill(record_of(slot.replica).pid or 0, signal.SIGKILL)
        await load.until(100)
        with anyio.fail_after(GUARD):
            await all_healthy(fleet)


async def test_a_rolling_restart_of_eight_under_load_fails_no_request_and_repeats_none(tmp_path: Path) -> None:
    async with running(tmp_path, 8, command=BUSY, model="fake") as fleet:
        before = [record_of(slot.replica).pid for slot in fleet.slots if isinstance(slot.replica, Server)]
        async with loaded(fleet, workers=32) as load:
            await load.until(50)
            with anyio.fail_after(4 * GUARD):
                await fleet.rolling_restart()
            await load.until(50)
        after = [record_of(slot.replica).pid for slot in fleet.slots if isinstance(slot.replica, Server)]
        assert not set(before) & set(after)
        assert fleet.client.retries == 0
        assert fleet.starts == 16


async def test_equal_replicas_answer_equally_many(tmp_path: Path) -> None:
    async with running(tmp_path, 4, command=BUSY, model="fake") as fleet:
        async with loaded(fleet, workers=16) as load:
            await load.until(800)
        served = []
        for slot in fleet.slots:
            assert isinstance(slot.replica, Server)
            served.append((await slot.replica.request("/_stats"))["generations"])
        mean = sum(served) / len(served)
        assert max(abs(one - mean) for one in served) <= 0.05 * mean, served


async def test_a_stream_goes_to_one_replica_and_is_counted_there_until_its_end(tmp_path: Path) -> None:
    async with running(tmp_path, 2, token_rate=50) as fleet:
        async with fleet.stream({"prompt": "x", "max_tokens": 5}, path="/v1/completions") as chunks:
            async for _ in chunks:
                assert sorted(slot.replica.gate.in_flight for slot in fleet.slots) == [0, 1]
        assert fleet.dispatch.in_flight == 0
