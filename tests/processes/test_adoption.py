"""A server whose manager is killed is kept for a while, adopted by the next one, and never left behind or shared."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lifecycle.resources.private import keepers_dir
from lifecycle.resources.reap import find_kept, leftovers, reap, records
from tests.fake import fake_command, stats
from tests.processes.trees import Box, Manager, is_alive, parent_of, wait_for_end

CHILDREN = ("same", "session,ignore-term")
LONG = 300.0
"""Seconds to keep a server: as long as any test."""
DIFFERENT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"served_name": "other"}, "another served_name"), ({"env": {"A": "secret-b"}}, "another env"),
    ({"port": 1}, "port = 1"),
)  # fmt: skip
MOMENTS_OF_AN_ADOPTER = ("before knock", "knock", "first word", "before record", "record", "before told", "told")


def command(box: Box, **more: Any) -> str:
    return fake_command(child=CHILDREN, model=box.mark, **more)


def kept(box: Box, seconds: float = LONG, **settings: Any) -> int:
    """Bring up a server and kill its manager; the pid of the server."""
    manager = Manager(box, command(box), keep_for=seconds, **settings)
    pid: int = manager.wait_for("Starting")["pid"]
    killed_when_entrusted(manager)
    return pid


def killed_when_entrusted(manager: Manager) -> None:
    """Kill a manager as soon as it has told the keeper to keep its server."""
    manager.wait(lambda record: str(record["detail"].get("phase")).startswith("should its manager die"))
    manager.kill()
    manager.wait_until_ended()


def attached(box: Box, **settings: Any) -> Manager:
    return Manager(box, command(box), **{"keep_for": LONG, "attach": True, **settings})


def stopped(box: Box, manager: Manager) -> None:
    manager.kill(signal.SIGTERM)
    manager.wait_for("Stopped")
    manager.wait_until_ended()
    assert box.left_at_last() == {}
    assert not list(box.state.glob("servers/*"))
    assert not doors(box)


def doors(box: Box) -> list[Path]:
    """Doors of keepers of this box that are still there."""
    return [Path(record.door) for record in records(box.state) if Path(record.door).exists()]


def states(manager: Manager) -> list[str]:
    return [record["after"] for record in manager.records if record["kind"] == "transition"]


def test_the_next_manager_adopts_the_running_server_and_starts_nothing(box: Box) -> None:
    pid = kept(box)
    tree = box.processes()
    assert reap(box.state) == []  # as any other start in this state folder does: it is no leftover
    second = attached(box)
    healthy = second.wait_for("Healthy")
    assert states(second) == ["Locking", "Adopting", "Starting", "Healthy"]
    assert next(record["pid"] for record in second.records if record["event"] == "Adopted") == pid
    assert box.processes() - {second.pid} == tree
    assert healthy["detail"]["model"] == box.mark
    (port,) = box.ports
    assert stats(f"http://127.0.0.1:{port}")["attempt"] == 1
    stopped(box, second)


def test_when_nobody_comes_in_time_the_keeper_ends_the_tree_as_always(box: Box) -> None:
    kept(box, 0.2)
    assert box.left_at_last() == {}
    assert not list(box.state.glob("servers/*"))
    fresh = attached(box)
    fresh.wait_for("Healthy")
    assert "Adopting" not in states(fresh)
    stopped(box, fresh)


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_server_whose_manager_has_gone_is_told_to_end_before_it_is_killed(box: Box, seconds: float) -> None:
    words = command(box, say_on_term=("fake: told to end",))
    manager = Manager(box, words, keep_for=seconds)
    log = Path(manager.wait_for("Starting")["log"])
    manager.wait_for("Healthy")
    if seconds:
        killed_when_entrusted(manager)
    else:
        manager.kill()
        manager.wait_until_ended()
    assert box.left_at_last() == {}
    assert "fake: told to end" in log.read_text()


def test_an_adopted_server_that_dies_is_started_again(box: Box) -> None:
    pid = kept(box, max_attempts=2, backoff_initial=0.01, backoff_max=0.1)
    second = attached(box, max_attempts=2, backoff_initial=0.01, backoff_max=0.1)
    second.wait_for("Healthy")
    os.kill(pid, signal.SIGKILL)
    second.wait_for("Backoff")
    again = second.wait_for("Starting")
    assert again["pid"] != pid
    second.wait_for("Healthy")
    stopped(box, second)


def test_one_that_was_started_otherwise_is_refused_and_what_differs_named(box: Box) -> None:
    pid = kept(box)
    for different, named in DIFFERENT:
        second = attached(box, **different)
        failed = second.wait_for("Failed")
        second.wait_until_ended()
        refused = next(record for record in second.records if record["event"] == "FoundKept")
        assert refused["after"] == "Draining"
        said = refused["detail"]["diagnosis"]["summary"]
        assert named in said
        assert str(pid) in said
        assert "secret-b" not in said
        assert failed["attempt"] == 1
        assert is_alive(pid)
    third = attached(box)
    third.wait_for("Healthy")
    stopped(box, third)


def test_of_two_managers_that_attach_at_once_one_adopts_and_the_other_is_refused(box: Box) -> None:
    pid = kept(box)
    both = [attached(box), attached(box)]
    ends = [manager.wait(lambda record: record["after"] in ("Healthy", "Failed")) for manager in both]
    assert sorted(end["after"] for end in ends) == ["Failed", "Healthy"]
    loser = both[0 if ends[0]["after"] == "Failed" else 1]
    winner = both[1 if loser is both[0] else 0]
    said = str([record["detail"].get("diagnosis") for record in loser.records])
    assert "another manager" in said or f"manager {winner.pid}" in said  # by the port's lease, or by the keeper
    loser.wait_until_ended()
    assert is_alive(pid)
    stopped(box, winner)


@pytest.mark.parametrize("moment", ["before keepsake", "keepsake", "before told"])
def test_a_manager_killed_before_it_has_told_the_keeper_leaves_nothing(box: Box, moment: str) -> None:
    manager = Manager(box, command(box), keep_for=LONG, dies_at=moment)
    manager.wait_for("Healthy")
    manager.wait_until_ended()
    assert box.left_at_last() == {}
    assert not list(box.state.glob("servers/*.keepsake"))


def test_adopters_killed_at_any_step_leave_the_server_to_the_next_one(box: Box) -> None:
    pid = kept(box)
    for moment in MOMENTS_OF_AN_ADOPTER:
        dying = attached(box, dies_at=moment)
        dying.wait_until_ended()
        assert is_alive(pid), moment
        assert leftovers(box.state) == [], moment
    last = attached(box)
    last.wait_for("Healthy")
    assert next(record["pid"] for record in last.records if record["event"] == "Adopted") == pid
    stopped(box, last)


def test_a_keeper_killed_while_it_keeps_is_found_and_its_tree_reaped(box: Box) -> None:
    pid = kept(box)
    (record,) = records(box.state)
    for of_another in (replace(record, main_started=1), replace(record, keeper_started=1)):  # their pids, reused
        of_another.write()
        assert find_kept(box.state, box.mark) is None
    record.write()
    found = find_kept(box.state, box.mark)
    assert found is not None
    assert found.keepsake.pid == pid
    keeper = parent_of(pid)
    os.kill(keeper, signal.SIGKILL)
    wait_for_end([keeper])
    assert find_kept(box.state, box.mark) is None
    assert [found.label for found in reap(box.state)] == [box.mark]
    assert box.left_at_last() == {}


def test_nobody_else_can_open_the_folder_of_the_doors() -> None:
    assert keepers_dir().stat().st_mode & 0o077 == 0
