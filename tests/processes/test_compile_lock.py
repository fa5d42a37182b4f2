"""One builds a cache, the others wait and then skip it; whoever dies or gives up holds up nobody."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.errors import StokerError
from lifecycle.resources import compile_lock
from lifecycle.resources.compile_lock import Held, LockUnsupported, acquire, folder_of, holder
from lifecycle.server import Server
from tests.fake import fake_command
from tests.processes.trees import GUARD, Box, Manager, state_of

pytestmark = pytest.mark.anyio

HOLDER = """
import anyio, sys
from pathlib import Path
from lifecycle.resources.compile_lock import acquire
held = anyio.run(acquire, sys.argv[1], Path(sys.argv[2]))
print("held" if held else "skipped", flush=True)
if sys.stdin.readline() == "complete\\n":
    held.complete()
    print("complete", flush=True)
    sys.stdin.readline()
"""


async def build(key: str, root: Path) -> Held:
    with anyio.fail_after(GUARD):
        held = await acquire(key, root)
    assert held is not None
    return held


class Other:
    """Another process that builds a cache."""

    def __init__(self, key: str, root: Path) -> None:
        argv = (sys.executable, "-c", HOLDER, key, str(root))
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def complete(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("complete\n")
        self.process.stdin.flush()
        assert self.says() == "complete"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


async def test_one_builds_the_others_wait_and_all_of_them_skip_at_once(tmp_path: Path) -> None:
    held = await build("key", tmp_path)
    ends: list[Held | None] = []

    async def wait() -> None:
        ends.append(await acquire("key", tmp_path))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(wait)
            await anyio.sleep(0.1)
            assert ends == []
            held.complete()  # not yet released: they need not wait for that
            while len(ends) < 8:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    assert ends == [None] * 8
    held.release()
    assert await acquire("key", tmp_path) is None


async def test_without_a_mark_the_next_in_line_builds(tmp_path: Path) -> None:
    held = await build("key", tmp_path)
    built: list[int] = []

    async def wait(number: int) -> None:
        mine = await acquire("key", tmp_path)
        if mine is not None:
            built.append(number)
            if len(built) == 3:
                mine.complete()
            mine.release()

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
            held.release()
    assert len(built) == 3


async def test_a_cache_completed_between_the_look_and_the_lock_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = compile_lock._try

    def completed_meanwhile(lock: Any, folder: Path) -> bool:
        (folder / "complete").touch()
        return get(lock, folder)

    with monkeypatch.context() as patch:
        patch.setattr(compile_lock, "_try", completed_meanwhile)
        assert await acquire("key", tmp_path) is None
    (folder_of("key", tmp_path) / "complete").unlink()
    (await build("key", tmp_path)).release()


async def test_other_keys_do_not_wait(tmp_path: Path) -> None:
    for key in ("one", "two", "../../etc", "x" * 10_000, "", "a/b\0c", "é"):
        held = await build(key, tmp_path)
        assert folder_of(key, tmp_path).parent == tmp_path / "compile"
        assert held is not None


async def test_complete_and_release_can_be_said_again(tmp_path: Path) -> None:
    held = await build("key", tmp_path)
    for _ in range(2):
        held.complete()
    for _ in range(2):
        held.release()
    assert await acquire("key", tmp_path) is None


async def test_a_holder_that_dies_before_the_mark_frees_the_lock_and_the_next_one_builds(tmp_path: Path) -> None:
    other = Other("key", tmp_path)
    try:
        assert other.says() == "held"
        async with anyio.create_task_group() as group:
            waiting: list[Held | None] = []

            async def wait() -> None:
                waiting.append(await acquire("key", tmp_path))

            group.start_soon(wait)
            await anyio.sleep(0.05)
            assert waiting == []
            found = holder("key", tmp_path)
            assert found is not None
            assert (found.host, found.pid) == (socket.gethostname(), other.process.pid)
            os.kill(other.process.pid, signal.SIGKILL)
        assert waiting[0] is not None
        now = holder("key", tmp_path)
        assert now is not None
        assert now.pid == os.getpid()
        waiting[0].release()
        assert holder("key", tmp_path) is None
    finally:
        other.kill()


async def test_a_dead_holder_is_not_named(tmp_path: Path) -> None:
    other = Other("key", tmp_path)
    assert other.says() == "held"
    other.kill()
    assert holder("key", tmp_path) is None


async def test_a_holder_that_dies_after_the_mark_makes_nobody_build(tmp_path: Path) -> None:
    other = Other("key", tmp_path)
    try:
        assert other.says() == "held"
        other.complete()
    finally:
        other.kill()
    assert await acquire("key", tmp_path) is None


async def test_a_waiter_that_is_cancelled_leaves_nothing_held(tmp_path: Path) -> None:
    held = await build("key", tmp_path)
    for _ in range(3):
        with anyio.move_on_after(0.03) as scope:
            await acquire("key", tmp_path)
        assert scope.cancelled_caught
    held.release()
    (await build("key", tmp_path)).release()


async def test_a_start_that_is_cancelled_as_it_gets_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            if (held := await acquire("key", tmp_path)) is not None:
                held.release()
    (await build("key", tmp_path)).release()


async def test_a_process_that_the_holder_starts_does_not_inherit_the_lock(tmp_path: Path) -> None:
    held = await build("key", tmp_path)
    with subprocess.Popen(("sleep", "100"), close_fds=False) as child:  # noqa: ASYNC220
        try:
            held.release()
            (await build("key", tmp_path)).release()
        finally:
            child.kill()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
async def test_a_file_system_without_locks_is_a_named_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with anyio.fail_after(GUARD), pytest.raises(LockUnsupported, match="state_dir") as error:
        await acquire("key", tmp_path)
    assert str(tmp_path) in str(error.value)


async def test_locks_that_exclude_nobody_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nolock` NFS: everybody gets the lock. All build; the mark is whole whoever writes it last."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    both = [await build("key", tmp_path) for _ in range(2)]
    for held in both:
        held.complete()
    for held in both:
        held.release()
    assert await acquire("key", tmp_path) is None


async def test_a_stale_handle_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, failures = fcntl.flock, iter([errno.ESTALE, errno.ESTALE])

    def stale(*arguments: Any) -> None:
        for number in failures:
            raise OSError(number, os.strerror(number))
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", stale)
    (await build("key", tmp_path)).release()


@pytest.mark.parametrize("obstacle", ["compile", "key folder"])
async def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "compile" if obstacle == "compile" else folder_of("key", tmp_path)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(StokerError, match="set state_dir") as error:
        await acquire("key", tmp_path)
    assert str(tmp_path) in str(error.value)


async def test_a_lock_file_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    (folder_of("key", tmp_path) / "lock").mkdir(parents=True)
    with pytest.raises(StokerError, match="set state_dir"):
        await acquire("key", tmp_path)


async def test_a_holder_that_cannot_be_written_down_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(compile_lock, "_write", full)
        with pytest.raises(StokerError, match="No space left") as kept:
            await acquire("key", tmp_path)
    (await build("key", tmp_path)).release()
    assert kept.value is not None  # with its traceback, in which the lock would live on


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"host": 1, "pid": "x", "since": 0}'])
async def test_a_note_of_the_holder_that_makes_no_sense_is_nobody(tmp_path: Path, content: str) -> None:
    (await build("key", tmp_path)).release()
    (folder_of("key", tmp_path) / "holder").write_text(content)
    assert holder("key", tmp_path) is None


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
