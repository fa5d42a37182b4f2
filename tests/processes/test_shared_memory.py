"""What a server's tree makes in /dev/shm goes with it, however it ends; what others made or use stays."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import anyio
import pytest

from lifecycle.cli import main as stoker
from lifecycle.resources import shared_memory
from lifecycle.resources.process import KeptProcess, spawn
from lifecycle.resources.reap import leftovers, reap, records
from lifecycle.resources.tree import descendants
from tests.fake import literal
from tests.processes.trees import GUARD, HERE, Box, Manager, is_alive, kill_together, parent_of, until, wait_for_end

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path(shared_memory.FOLDER).is_dir(), reason="no /dev/shm on this machine"),
]

FOLDER = Path(shared_memory.FOLDER)
SCRIPT = str(HERE / "segments.py")


@pytest.fixture(autouse=True)
def plain_files_go(box: Box) -> Iterator[None]:
    yield
    for path in FOLDER.glob(f"{box.mark}-*"):
        path.unlink()


async def maker(box: Box, *words: str) -> tuple[KeptProcess, list[Path]]:
    """A server that has made shared memory, which has been noted, and where that is."""
    process = await spawn(box.spawn(sys.executable, SCRIPT, box.mark, *words))
    made = []
    with anyio.fail_after(GUARD):
        async for line in process.lines():
            if line == "ready":
                break
            made.append(Path(line))
    assert all(path.exists() for path in made)
    return process, made


async def noted(box: Box, count: int) -> None:
    await until(lambda: sum(len(record.memory()) for record in records(box.state)) == count)


@contextmanager
def stranger(*words: str) -> Iterator[list[Path]]:
    """A process that is none of ours, and what it has made."""
    with subprocess.Popen((sys.executable, SCRIPT, "stranger", *words), stdout=subprocess.PIPE, text=True) as process:
        made = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "ready\n":
                    break
                made.append(Path(line.strip()))
            yield made
        finally:
            kill_together(process.pid, *descendants(process.pid))
            for path in made:
                path.unlink(missing_ok=True)


WORDS = {
    "one process": ("segment", "semaphore", "segment"),
    "a child": ("segment", "semaphore", "child", "segment", "semaphore"),
    "a child's child alone": ("child", "child", "segment", "semaphore"),
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("how", ["leader killed", "ended", "ended with grace", "all killed"])
async def test_a_tree_that_is_ended_by_force_leaves_no_shared_memory(
    box: Box, words: tuple[str, ...], how: str
) -> None:
    process, made = await maker(box, *words)
    await noted(box, len(made))
    if how == "leader killed":
        os.kill(process.pid, signal.SIGKILL)
    elif how == "all killed":
        kill_together(*process.pids())
    with anyio.fail_after(GUARD):
        if "killed" in how:
            await process.exited()
        await process.end(0.1 if how == "ended with grace" else 0)
    assert [path for path in made if path.exists()] == []
    assert list((box.state / "servers").iterdir()) == []


async def test_what_was_made_just_before_the_end_is_found_while_a_process_of_the_tree_holds_it(box: Box) -> None:
    process, made = await maker(box, *["segment"] * 20, "child", "semaphore")
    os.kill(process.pid, signal.SIGKILL)
    with anyio.fail_after(GUARD):
        await process.end(0)
    assert [path for path in made if path.exists()] == []


async def test_a_plain_file_that_a_server_keeps_there_stays(box: Box) -> None:
    process, (file, segment) = await maker(box, "file", "segment")
    await noted(box, 1)
    await process.end(0)
    assert file.read_text() == "for later"
    assert not segment.exists()


async def test_what_a_stranger_makes_stays_before_and_while_the_server_lives_also_if_the_server_uses_it(
    box: Box,
) -> None:
    before = SharedMemory(create=True, size=4096)
    try:
        process, made = await maker(box, "segment", f"use:{before.name}")
        before.close()  # used by nobody but the server now
        with stranger("segment", "semaphore") as theirs:
            await noted(box, len(made))
            await process.end(0)
            assert all(path.exists() for path in theirs)
        assert (FOLDER / before.name).exists()
        assert [path for path in made if path.exists()] == []
    finally:
        before.unlink()


async def test_what_the_server_made_stays_as_long_as_a_stranger_uses_it(box: Box) -> None:
    process, (used, unused) = await maker(box, "segment", "segment")
    await noted(box, 2)
    with stranger(f"use:{used.name}"):
        await process.end(0)
        assert used.exists()
        assert not unused.exists()
    used.unlink()


@pytest.mark.parametrize("leases", [True, False], ids=["by a lease", "by looking at all processes"])
def test_what_is_in_use_is_not_removed_and_what_is_not_is(leases: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not leases:
        monkeypatch.setattr(fcntl, "F_SETLEASE", 12345)
    with stranger("segment", "semaphore") as theirs:
        inodes = {path.stat().st_ino for path in theirs}
        shared_memory.remove(inodes, shared_memory.device())
        assert all(path.exists() for path in theirs)
        free = SharedMemory(create=True, size=4096)
        inode = os.fstat(free._fd).st_ino  # type: ignore[attr-defined]
        free.close()
        shared_memory.remove({inode}, shared_memory.device() + 1)
        assert (FOLDER / free.name).exists()
        shared_memory.remove({inode}, shared_memory.device())
        assert not (FOLDER / free.name).exists()
        resource_tracker.unregister(f"/{free.name}", "shared_memory")


def managed(box: Box) -> tuple[Manager, int, list[Path]]:
    """A manager in a process of its own, its server's leader, and what that has made."""
    words = (sys.executable, SCRIPT, box.mark, "segment", "semaphore", "child", "segment")
    manager = Manager(box, f"{shlex.join(map(literal, words))} {{port}}")
    record = manager.wait_for("Starting")
    log = Path(record["log"])
    while "ready" not in (lines := log.read_text().split()):
        assert manager.process.poll() is None
    while sum(len(one.memory()) for one in records(box.state)) < 3:
        assert is_alive(record["pid"])
    return manager, record["pid"], [Path(line) for line in lines if line.startswith("/")]


def test_a_manager_that_is_killed_leaves_no_shared_memory(box: Box) -> None:
    manager, _, made = managed(box)
    manager.kill()
    manager.wait_until_ended()
    assert box.left_at_last() == {}
    assert [path for path in made if path.exists()] == []


@pytest.mark.parametrize("tree_dies", [False, True], ids=["and its tree lives", "and its whole tree"])
def test_after_manager_and_keeper_were_killed_reaping_shows_and_removes_it(
    box: Box, tree_dies: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    manager, leader, made = managed(box)
    tree = {leader, *descendants(leader)}
    kill_together(manager.pid, parent_of(leader), *(tree if tree_dies else ()))
    manager.wait_until_ended()
    if tree_dies:
        assert wait_for_end(tree) == set()
    assert all(path.exists() for path in made)
    (found,) = leftovers(box.state)
    assert set(found.memory()) == set(made)
    assert stoker(["reap", "--state-dir", str(box.state)]) == 0
    assert "shared memory: 3 files" in capsys.readouterr().out
    assert all(path.exists() for path in made)
    reap(box.state)
    assert [path for path in made if path.exists()] == []
    assert list((box.state / "servers").iterdir()) == []


def test_what_a_tree_makes_without_a_keeper_is_noted_before_it_is_reaped(box: Box) -> None:
    manager, leader, made = managed(box)
    os.kill(manager.pid, signal.SIGSTOP)  # or it would end the tree
    os.kill(parent_of(leader), signal.SIGKILL)
    (record,) = records(box.state)
    notes = record.notes.read_text().splitlines()
    record.notes.write_text(notes[0] + "\n")  # as if all had been made since
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait_until_ended()
    reap(box.state)
    assert [path for path in made if path.exists()] == []


def test_torn_notes_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    device = shared_memory.device()
    (tmp_path / "notes").write_text(f"before {device} 1 2\nmade 3\nmade\nmade 4 5\nmade 6")
    notes = shared_memory.Notes(str(tmp_path / "notes"))
    assert (notes.before, notes.made) == ({1, 2}, {3, 4, 5})
    (tmp_path / "notes").write_text(f"before {device + 1} 1\nmade 3\n")  # of another /dev/shm
    assert shared_memory.Notes(str(tmp_path / "notes")).made == set()
    assert shared_memory.Notes(str(tmp_path / "none")).before is None
