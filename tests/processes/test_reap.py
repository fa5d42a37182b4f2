"""What dead managers left behind is found and ended; strangers, the living and other hosts' servers are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.cli import main as stoker
from lifecycle.resources import reap as reap_module
from lifecycle.resources.process import spawn
from lifecycle.resources.reap import Leftover, leftovers, new_record, reap, records, start_time
from lifecycle.server import Server
from tests.fake import fake_command
from tests.processes.trees import GUARD, Box, Manager, is_alive, kill_together, parent_of, state_of, tree, until

pytestmark = pytest.mark.anyio

GONE = 2**22 + 1
"""A pid that nobody has: the kernel's limit is 2**22."""


@contextmanager
def stranger() -> Iterator[int]:
    """A process in a session of its own that is none of ours to end."""
    with subprocess.Popen(("sleep", "100"), start_new_session=True) as process:
        try:
            yield process.pid
            assert process.poll() is None
        finally:
            process.kill()


def record_of_dead(box: Box) -> Leftover:
    """The record of a server whose manager, keeper and main process have gone; not written."""
    made = new_record(box.state, "0123456789abcdef", "dead", GONE, str(box.temporary / "stk-dead"))
    return replace(made, manager=GONE, manager_started=1, keeper_started=1, main=GONE, main_started=1, pipe=1)


@pytest.mark.fault(11, 12)
def test_a_server_that_lost_manager_and_keeper_is_ended_with_all_that_it_has(box: Box) -> None:
    manager = orphan(box, fake_command(child=("session,ignore-term", "double", "same,quiet"), model=box.mark))
    assert len(box.processes()) == 4
    assert list(box.temporary.iterdir())
    (found,) = reap(box.state)
    assert (found.label, found.manager) == (box.mark, manager.pid)
    assert box.left() == {}
    assert reap(box.state) == []


def test_what_was_struck_is_waited_for_also_if_its_environment_has_gone_before_it(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that the kernel takes apart: its memory goes before the files and sockets that it has open."""
    with subprocess.Popen(("sleep", "100")) as dying:
        found = iter([{dying.pid: start_time(dying.pid)}])
        monkeypatch.setattr("lifecycle.resources.reap.tagged", lambda server: next(found, {}))
        monkeypatch.setattr("lifecycle.resources.reap.kill", lambda pid, started: None)
        record, struck = record_of_dead(box), dict[int, int]()
        record.write()
        assert not record.strike(struck)
        assert not record.strike(struck)
        dying.kill()
        dying.wait()
        assert record.strike(struck)
    assert list(records(box.state)) == []


@pytest.mark.fault(12, 20)
async def test_the_next_start_in_the_same_state_folder_ends_it_first_and_gets_its_port(box: Box) -> None:
    manager = orphan(box, fake_command(child=("session,ignore-term",), model=box.mark))
    (port,) = box.ports
    left = box.processes()
    config = box.config(fake_command(model=box.mark), port=port)
    async with Server(config) as server:
        with anyio.fail_after(GUARD):
            assert await server.healthy() == f"http://127.0.0.1:{port}"
        assert not [pid for pid in left if is_alive(pid)]
    assert manager.pid not in {record.manager for record in records(box.state)}
    assert box.left() == {}


def test_the_command_shows_first_and_ends_when_told_to(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    orphan(box, fake_command(model=box.mark))
    left = box.processes()
    assert stoker(["reap", "--state-dir", str(box.state)]) == 0
    assert box.mark in capsys.readouterr().out
    assert box.processes() == left
    assert stoker(["reap", "--state-dir", str(box.state), "--yes"]) == 0
    assert box.left() == {}


def orphan(box: Box, command: str) -> Manager:
    """Bring up a server and kill its manager and its keeper."""
    manager = Manager(box, command)
    leader = manager.wait_for("Starting")["pid"]
    manager.wait_for("Healthy")
    kill_together(manager.pid, parent_of(leader))
    manager.wait_until_ended()
    return manager


def test_several_may_reap_at_once(box: Box) -> None:
    orphan(box, fake_command(child=("session", "double"), model=box.mark))
    threads = [threading.Thread(target=reap, args=(box.state,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD)
    assert not any(thread.is_alive() for thread in threads)
    assert box.left() == {}


async def test_a_running_server_is_not_reaped(box: Box) -> None:
    process = await spawn(box.spawn(*tree(box.mark, "session")))
    try:
        assert reap(box.state) == []
        assert is_alive(process.pid)
        assert [record.main for record in records(box.state)] == [process.pid]
    finally:
        with anyio.CancelScope(shield=True):
            await process.end(0)


@pytest.mark.parametrize("role", ["manager", "keeper", "main"])
def test_whoever_has_got_a_pid_of_ours_since_is_not_ended(box: Box, role: str) -> None:
    with stranger() as pid:
        other = start_time(pid) + 1
        changes: dict[str, Any] = {role: pid, f"{role}_started": other}
        record = replace(record_of_dead(box), **changes)
        record.write()
        assert pid not in record.processes()
        assert reap(box.state) == [record]
    assert box.left() == {}


def test_who_merely_has_a_session_or_a_pipe_of_that_number_from_before_is_not_ended(box: Box) -> None:
    read, write = os.pipe()
    script = "sleep 100 & exec true"  # the session stays, its leader goes
    with subprocess.Popen(("sh", "-c", script), stdout=write, start_new_session=True) as leader:
        leader.wait()
        (member,) = reap_module.in_session(leader.pid, 0)
        try:
            later = start_time(member) + 1
            pipe = os.fstat(write).st_ino
            record = replace(record_of_dead(box), main=leader.pid, main_started=later, pipe=pipe)
            record.write()
            assert member in reap_module.holding(pipe, 0)
            assert reap(box.state) == [record]
            assert is_alive(member)
            assert member in replace(record, main_started=later - 1).processes()
            assert member not in replace(record, main_started=later - 1, pipe=1).processes()
        finally:
            os.kill(member, signal.SIGKILL)
            os.close(read)
            os.close(write)


@pytest.mark.parametrize(
    "elsewhere",
    [{"host": "another-host", "boot": "another boot"}, {"namespace": "pid:[1]"}],
    ids=["another host", "another container"],
)
def test_a_server_of_another_host_with_the_same_state_folder_is_left_alone(
    box: Box, elsewhere: dict[str, Any]
) -> None:
    with stranger() as pid:
        theirs = replace(record_of_dead(box), keeper=pid, keeper_started=start_time(pid), **elsewhere)
        theirs.write()
        assert reap(box.state) == []
        assert list(records(box.state)) == [theirs]
        assert theirs.processes() == {}


def test_after_a_reboot_the_record_goes_and_no_process_is_taken_for_ours(box: Box) -> None:
    with stranger() as pid:
        old = replace(record_of_dead(box), keeper=pid, keeper_started=start_time(pid), boot="the boot before")
        old.write()
        assert reap(box.state) == [old]
    assert box.left() == {}


def test_a_keeper_that_died_before_it_was_written_down_is_not_looked_for(box: Box) -> None:
    dead = replace(record_of_dead(box), manager=os.getpid(), manager_started=start_time(os.getpid()), keeper_started=0)
    assert dead.processes() == {}
    assert dead.orphaned


def test_records_that_cannot_be_read_stop_nothing(box: Box) -> None:
    record = record_of_dead(box)
    record.write()
    for number, content in enumerate((b"", b"{", b"\xff\0", b"[]", b'{"id": 1}', record.path.read_bytes()[:-10])):
        (record.path.parent / f"{number}.json").write_bytes(content)
    (record.path.parent / "folder.json").mkdir()
    (record.path.parent / "link.json").symlink_to("/no/such/file")
    assert reap(box.state) == [record]
    assert reap(box.root / "nowhere") == []


def test_a_record_half_written_goes_once_it_can_no_longer_be_completed(box: Box) -> None:
    (box.state / "servers").mkdir()
    old, new = box.state / "servers" / ".old", box.state / "servers" / ".new"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    reap(box.state)
    assert not old.exists()
    assert new.exists()


def test_what_survives_sigkill_is_given_up_and_kept_in_the_record(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may hold a process for minutes; the next start must not wait for ever for it."""
    with stranger() as pid:
        record = replace(record_of_dead(box), main=pid, main_started=start_time(pid))
        record.write()
        monkeypatch.setattr(reap_module, "kill", lambda pid, started: None)
        assert record.end(patience=0.01) is False
        assert leftovers(box.state) == [record]


async def test_a_dead_keepers_tree_does_not_hold_up_the_manager(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for it does not block the loop, and can be given up and taken up again."""
    process = await spawn(box.spawn(*tree(box.mark)))
    strike = Leftover.strike
    monkeypatch.setattr(Leftover, "strike", lambda self, struck: False)
    os.kill(parent_of(process.pid), signal.SIGKILL)
    with anyio.move_on_after(0.05) as scope:
        await process.exited()
    assert scope.cancelled_caught
    monkeypatch.setattr(Leftover, "strike", strike)
    with anyio.fail_after(GUARD):
        await process.end(0)
    assert box.left() == {}


async def test_a_server_that_lost_its_keeper_is_started_again(box: Box) -> None:
    config = box.config(fake_command(child=("session",), model=box.mark), max_attempts=3)
    async with Server(config) as server:
        first = await state_of(server, "Healthy")
        assert server.activities.process is not None
        old = box.processes()
        os.kill(parent_of(server.activities.process.pid), signal.SIGKILL)
        await state_of(server, "Healthy", after=first.seq)
        await until(lambda: not [pid for pid in old if is_alive(pid)])
    assert box.left() == {}


def test_the_record_lies_in_a_private_folder(box: Box) -> None:
    record_of_dead(box).write()
    assert Path(box.state / "servers").stat().st_mode & 0o077 == 0
