"""Parts of one server on several hosts that do not notice each other's end by themselves: the group does."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.config import load_config
from lifecycle.group import Group, Role, Worker
from lifecycle.resources.ports import free_port
from tests.fake import fake_command
from tests.processes.trees import wait_for_end
from tests.served import GUARD, HELLO, QUICK

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def two_hosts(folder: Path, *flags: Mapping[str, Any], **settings: Any) -> AsyncIterator[tuple[Group, Worker]]:
    """A group whose two hosts are this one. `flags` are those of the fake server on the head and on the other."""
    port = free_port("127.0.0.1")
    head, other = (
        load_config(
            "custom", command=fake_command(**own), model="fake", nodes=2, state_dir=str(folder / "state"),
            **{**QUICK, **settings},
        )[0]
        for own in flags
    )  # fmt: skip
    roles = [Role(rank, 2, "127.0.0.1", port, "a test") for rank in range(2)]
    async with Worker(other, roles[1]) as worker, Group(head, roles[0]) as group:
        yield group, worker


def pid_of(group: Group) -> int:
    server = group.crew.serving.server
    assert server is not None
    assert server.driver.facts.pid is not None
    return server.driver.facts.pid


def pid_of_other(worker: Worker) -> int:
    (part,) = worker.parts.values()
    assert part.server is not None
    assert part.server.driver.facts.pid is not None
    return part.server.driver.facts.pid


@pytest.mark.fault(23, 84)
async def test_a_rank_that_dies_ends_the_head_that_would_have_stayed_up(tmp_path: Path) -> None:
    async with two_hosts(tmp_path, {}, {}) as (group, worker):
        with anyio.fail_after(GUARD):
            await group.healthy()
        pids, seen = [pid_of(group), pid_of_other(worker)], group.journal.seq
        os.kill(pids[1], signal.SIGKILL)
        with anyio.fail_after(GUARD):
            await group.driver.wait("Gathering", after=seen)
            assert wait_for_end(pids, 0.0) == set(), "the next attempt begins when nothing is left of this one"
            assert (await group.chat(HELLO))["object"] == "fake"
        assert group.starts == 2
        assert group.diagnosis is not None
        assert "member 'rank-1'" in group.diagnosis.summary
        assert group.diagnosis.exit_code == -signal.SIGKILL


@pytest.mark.fault(85)
async def test_a_collective_that_would_hang_for_ten_minutes_is_cut_by_our_own_limit(tmp_path: Path) -> None:
    hangs = {"no_bind": True, "inner_deadline": 600}
    limits: dict[str, Any] = {"no_progress_timeout": 0.5, "max_attempts": 1}
    async with two_hosts(tmp_path, hangs, {}, **limits) as (group, worker):
        with anyio.fail_after(GUARD):
            assert await group.ended() == "Failed"
            assert await worker.ended() == "Failed"
        for end in (group, worker):
            assert end.diagnosis is not None
            assert end.diagnosis.cause == "no-progress"
            assert "member 'rank-0'" in end.diagnosis.summary
