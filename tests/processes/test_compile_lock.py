"""One builds a cache, the others wait and then skip it; whoever dies or gives up holds up nobody."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from lifecycle.adapter import CompileCache
from lifecycle.host import Holder
from lifecycle.resources.compile_lock import Contender, Held, acquire, holder
from lifecycle.server import Server
from tests.builders import Builders, starting_builders
from tests.fake import fake_command
from tests.processes.trees import GUARD, Box, Manager, state_of

pytestmark = pytest.mark.anyio

CACHE = CompileCache("key")


@pytest.fixture(scope="module")
def forks() -> Iterator[Builders]:
    with starting_builders() as builders:
        yield builders


@pytest.fixture
def builders(forks: Builders) -> Iterator[Builders]:
    yield forks
    forks.end_all()


async def build(root: Path, cache: CompileCache = CACHE) -> Held:
    with anyio.fail_after(GUARD):
        held = await acquire(cache, root)
    assert held is not None
    return held


async def test_one_builds_the_others_wait_and_all_of_them_skip_at_once(tmp_path: Path) -> None:
    held = await build(tmp_path)
    ends: list[Held | None] = []
    waiters = anyio.Semaphore(0)
    builder: list[Holder | None] = []

    def waiting(holder: Holder | None) -> None:
        builder.append(holder)
        waiters.release()

    async def wait() -> None:
        ends.append(await acquire(CACHE, tmp_path, waiting=waiting))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(wait)
            for _ in range(8):
                await waiters.acquire()
            assert ends == []
            held.complete()  # not yet released: they need not wait for that
    assert ends == [None] * 8
    assert builder == [holder(CACHE, tmp_path)] * 8
    held.release()
    assert holder(CACHE, tmp_path) is None
    assert await acquire(CACHE, tmp_path) is None


async def test_without_a_mark_the_next_in_line_builds(tmp_path: Path) -> None:
    held = await build(tmp_path)
    built: list[int] = []

    async def wait(number: int) -> None:
        mine = await acquire(CACHE, tmp_path)
        if mine is not None:
            built.append(number)
            if len(built) == 3:
                mine.complete()
            mine.release()

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(wait, number)
            await anyio.lowlevel.checkpoint()
            held.release()
    assert len(built) == 3


async def test_a_cache_completed_between_the_look_and_the_lock_is_not_built_again(
    builders: Builders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = builders.start(CACHE, tmp_path)
    assert other.acquire() == "held"
    flock = fcntl.flock

    def slow_flock(fd: int, operation: int) -> None:
        monkeypatch.undo()
        assert other.ask("complete") == {"done": "complete"}
        other.ask("release")
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    with anyio.fail_after(GUARD):
        assert await acquire(CACHE, tmp_path) is None
    assert other.ask("lock") == {"taken": True}


async def test_other_keys_do_not_wait(tmp_path: Path) -> None:
    for key in ("one", "two", "../../etc", "x" * 10_000, "", "a/b\0c", "é"):
        cache = CompileCache(key)
        assert cache.entry(tmp_path).parent == tmp_path / "compile"
        await build(tmp_path, cache)


async def test_complete_and_release_can_be_said_again(tmp_path: Path) -> None:
    held = await build(tmp_path)
    for _ in range(2):
        held.complete()
    for _ in range(2):
        held.release()
    held.complete()
    assert await acquire(CACHE, tmp_path) is None


async def test_who_has_given_the_right_back_marks_nothing(tmp_path: Path) -> None:
    held = await build(tmp_path)
    held.release()
    held.complete()
    (await build(tmp_path)).release()


async def test_a_holder_that_dies_frees_the_lock_and_the_next_one_is_named(builders: Builders, tmp_path: Path) -> None:
    other = builders.start(CACHE, tmp_path)
    assert other.acquire() == "held"
    seen = anyio.Event()
    named: list[Holder | None] = []

    def waiting(holder: Holder | None) -> None:
        named.append(holder)
        seen.set()

    async def die() -> None:
        await seen.wait()
        os.kill(other.pid, signal.SIGKILL)

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            group.start_soon(die)
            held = await acquire(CACHE, tmp_path, waiting=waiting)
    assert held is not None
    assert [found.pid for found in named if found] == [other.pid]
    now = holder(CACHE, tmp_path)
    assert now is not None
    assert now.pid == os.getpid()
    held.release()


async def test_each_new_holder_is_told_of(builders: Builders, tmp_path: Path) -> None:
    first, second, waiter = (builders.start(CACHE, tmp_path) for _ in range(3))
    assert first.acquire() == "held"
    waiter.tell("acquire")
    assert waiter.until("waiting")["pid"] == first.pid
    os.kill(waiter.pid, signal.SIGSTOP)
    first.ask("release")
    assert second.acquire() == "held"
    os.kill(waiter.pid, signal.SIGCONT)
    assert waiter.until("waiting")["pid"] == second.pid
    second.kill()
    assert waiter.until("got") == "held"


async def test_a_holder_that_has_not_said_who_it_is_is_told_of_as_nobody(builders: Builders, tmp_path: Path) -> None:
    bare = builders.start(CACHE, tmp_path)
    CACHE.entry(tmp_path).mkdir(parents=True)
    assert bare.ask("lock") == {"taken": True}
    waiter = builders.start(CACHE, tmp_path)
    waiter.tell("acquire")
    assert waiter.until("waiting") is None
    bare.kill()
    assert waiter.until("got") == "held"


async def test_a_waiter_that_is_cancelled_leaves_nothing_held(tmp_path: Path) -> None:
    held = await build(tmp_path)
    for _ in range(3):
        with anyio.move_on_after(0.03) as scope:
            await acquire(CACHE, tmp_path)
        assert scope.cancelled_caught
    held.release()
    (await build(tmp_path)).release()


@pytest.mark.parametrize("checkpoints", range(6))
async def test_a_start_that_is_cancelled_as_it_gets_the_lock_does_not_keep_it(tmp_path: Path, checkpoints: int) -> None:
    """Also when the thread that gets it is left alone by the cancellation."""

    async def start() -> None:
        if (held := await acquire(CACHE, tmp_path)) is not None:
            held.release()

    for _ in range(5):
        async with anyio.create_task_group() as group:
            group.start_soon(start)
            for _ in range(checkpoints):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    (await build(tmp_path)).release()


async def test_what_was_got_and_not_yet_handed_over_is_given_back_by_giving_up(
    builders: Builders, tmp_path: Path
) -> None:
    contender = Contender(CACHE, tmp_path)
    assert isinstance(contender.look(), Held)
    contender.give_up()
    assert builders.start(CACHE, tmp_path).acquire() == "held"


async def test_a_process_that_the_holder_starts_does_not_inherit_the_lock(tmp_path: Path) -> None:
    held = await build(tmp_path)
    with subprocess.Popen(("sleep", "100"), close_fds=False) as child:  # noqa: ASYNC220
        try:
            held.release()
            (await build(tmp_path)).release()
        finally:
            child.kill()


async def test_two_servers_compile_once(box: Box) -> None:
    """The second waits in Locking until the first is Healthy, and then goes on without the lock."""
    config = box.config(fake_command(model=box.mark, bind_after=0.3), options={"compile_key": "cache"})
    async with Server(config) as first:
        await state_of(first, "Starting")
        async with Server(config) as second:
            await state_of(second, "Locking")
            assert first.state == "Starting"
            with anyio.fail_after(GUARD):
                await second.healthy()
            events = [record.event for record in second.journal.records]
            assert "LockSkipped" in events
            assert "LockAcquired" in [record.event for record in first.journal.records]
    assert box.left() == {}


async def test_a_manager_killed_while_it_compiles_lets_the_next_one_compile(box: Box) -> None:
    manager = Manager(box, fake_command(model=box.mark, bind_after=60), compile_key="cache")
    manager.wait_for("Starting")
    config = box.config(fake_command(model=box.mark), options={"compile_key": "cache"})
    async with Server(config) as server:
        await state_of(server, "Locking")
        manager.kill()
        manager.wait_until_ended()
        with anyio.fail_after(GUARD):
            await server.healthy()
        assert "LockAcquired" in [record.event for record in server.journal.records]
    assert box.left_at_last() == {}


@pytest.mark.parametrize("step", range(12))
def test_a_holder_that_dies_as_it_removes_the_folder_leaves_it_to_one(
    builders: Builders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """One has opened the lock's file, and then its folder is renamed away by a holder that is killed before it has
    removed it; a third makes the folder anew."""
    other = builders.start(CACHE, tmp_path)
    assert other.acquire() == "held"
    flock = fcntl.flock
    found: list[object] = []

    def slow_flock(fd: int, operation: int) -> None:
        monkeypatch.undo()
        other.ask("die_at", step=step)
        other.ask("release")
        other.kill()
        found.append(Contender(CACHE, tmp_path).look())
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    first = Contender(CACHE, tmp_path)
    found.append(first.look())
    holders = [each for each in found if isinstance(each, Held)]
    assert len(holders) <= 1
    for each in holders:
        each.release()
    assert isinstance(first.look(), Held)
