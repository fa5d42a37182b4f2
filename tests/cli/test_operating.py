"""`stoker ps`, `stop` and `logs`: commands for servers that another command tends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lifecycle.cli.ps import ORPHANED, UNKNOWN, rows_of
from lifecycle.cli.stop import choose
from lifecycle.errors import ConfigError
from lifecycle.journal import Kind, Record
from lifecycle.resources.desk import Status, ask, desks_dir, managers
from lifecycle.resources.reap import new_record
from lifecycle.roster import Roster, Standing
from tests.cli.command import Stoker, wait_for
from tests.processes.trees import wait_for_end

URL = "http://127.0.0.1:"


def name_of(stoker: Stoker) -> str:
    """A name that no other test's server has: desks are those of the whole host."""
    return f"s-{abs(hash(stoker.folder)) % 10**8}"


def served(stoker: Stoker, *more: str) -> subprocess.Popen[str]:
    process = stoker.start("serve", "--backend", "echo", "--name", name_of(stoker), *more)
    wait_for(process, URL)
    return process


def shown(stoker: Stoker) -> list[dict[str, Any]]:
    ended = stoker.run("ps", "--json")
    assert ended.code == 0
    rows = [json.loads(line) for line in ended.out.splitlines()]
    return [row for row in rows if row["name"].startswith(name_of(stoker))]


def test_a_server_is_shown_with_all_that_is_known_of_it_and_is_gone_when_it_has_ended(stoker: Stoker) -> None:
    process = served(stoker)
    (row,) = shown(stoker)
    assert (row["state"], row["attempt"], row["model"], row["manager"]) == ("Healthy", 1, "echo", process.pid)
    assert (row["in_flight"], row["trouble"]) == (0, "")
    assert row["memory"] > 10**6
    with socket.create_connection(("127.0.0.1", row["port"])):
        pass
    assert os.path.exists(row["log"])
    told = stoker.run("ps").out
    assert f"{name_of(stoker)}: log: {row['log']}" in told
    assert stoker.run("stop", name_of(stoker)).code == 0
    assert process.wait(30) == 0
    assert shown(stoker) == []
    assert not list(desks_dir().glob(f"{process.pid}-*"))


def test_a_fleet_is_one_row_and_each_replica_another(stoker: Stoker) -> None:
    stoker.write("in.jsonl", [{"prompt": f"Say {number}"} for number in range(100)])
    process = stoker.start(
        "generate", "in.jsonl", "--output", "out.jsonl", "--backend", "echo", "--replicas", "2", "--min-healthy", "2",
        "--name", name_of(stoker), "--concurrency", "4", "--set", "latency=2",
    )  # fmt: skip
    wait_for(process, "2 of 2 replicas serve")
    rows = {row["name"].removeprefix(name_of(stoker)): row for row in shown(stoker)}
    assert set(rows) == {"", "-0", "-1"}
    assert all(row["state"] == "Healthy" for row in rows.values())
    assert rows[""]["in_flight"] <= 4
    refused = stoker.run("stop", f"{name_of(stoker)}-1")
    assert (refused.code, "a part of" in refused.err) == (2, True)
    assert stoker.run("stop", str(process.pid)).code == 0
    assert process.wait(30) == 143, "told to end, like by SIGTERM"
    stoker.run("generate", "in.jsonl", "--output", "out.jsonl", "--backend", "echo")
    assert len(stoker.lines("out.jsonl")) == 100


def test_a_server_that_is_stopped_now_does_not_wait_for_what_is_in_flight(stoker: Stoker) -> None:
    process = served(stoker, "--set", "token_rate=0.2", "--set", "drain_timeout=200", "--set", "terminate_timeout=300")
    (row,) = shown(stoker)
    body = json.dumps({"model": "echo", "prompt": "x", "max_tokens": 500}).encode()
    with socket.create_connection(("127.0.0.1", row["port"])) as outsider:
        outsider.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        waits = stoker.run("stop", name_of(stoker), "--timeout", "1")
        assert (waits.code, "has not ended within --timeout 1 s" in waits.err) == (1, True)
        assert stoker.run("stop", name_of(stoker), "--now").code == 0
    assert process.wait(30) == 130


def test_logs_are_followed_from_one_attempt_to_the_next_until_the_end(stoker: Stoker) -> None:
    process = served(stoker, "--set", "backoff_initial=0")
    (row,) = shown(stoker)
    follows = stoker.start("logs", name_of(stoker), "-f")
    wait_for(follows, "listening")
    os.kill(row["pids"][0], signal.SIGKILL)
    wait_for(follows, f"{name_of(stoker)}-{process.pid}-2.log")
    wait_for(follows, "listening")
    assert stoker.run("stop", name_of(stoker)).code == 0
    follows.communicate(timeout=30)
    assert follows.returncode == 0
    last = stoker.run("logs", name_of(stoker), "-n", "1")
    assert (last.code, len(last.out.splitlines())) == (0, 1)
    assert f"{name_of(stoker)}-{process.pid}-2.log" in last.err


@pytest.mark.parametrize("words", [("logs", "nobody-has-this-name"), ("stop", "nobody-has-this-name"), ("stop",)])
def test_a_name_that_nobody_has_is_wrong_usage_that_says_so(stoker: Stoker, words: tuple[str, ...]) -> None:
    ended = stoker.run(*words)
    assert (ended.code, "Traceback" in ended.err) == (2, False)
    assert "nobody-has-this-name" in ended.err or "say which server" in ended.err


def test_a_desk_whose_manager_was_killed_is_taken_away(stoker: Stoker) -> None:
    process = served(stoker)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (left,) = desks_dir().glob(f"{process.pid}-*")
    list(managers())
    assert not left.exists()
    wait_for_end(stoker.live_processes())  # its keeper ends them


def test_a_question_that_is_none_is_answered_with_the_status_and_nothing_happens(stoker: Stoker) -> None:
    process = served(stoker)
    (at,) = desks_dir().glob(f"{process.pid}-*")
    assert at.stat().st_mode & 0o077 == 0
    for question in ("", "x" * 3000, "\0"):
        assert ask(at, question).servers[0].state == "Healthy"
    assert stoker.run("stop", str(process.pid)).code == 0


def standing(name: str, **more: Any) -> Standing:
    return Standing(name, "Healthy", 1.0, **more)


def test_a_name_that_two_commands_have_is_not_enough() -> None:
    found = [Status(11, (standing("a"),)), Status(12, (standing("a"), standing("b")))]
    with pytest.raises(ConfigError, match="11, 12"):
        choose(found, "a", everything=False)
    assert choose(found, "12", everything=False) == [found[1]]
    assert choose(found, None, everything=True) == found


def test_servers_of_programs_that_say_nothing_are_shown_by_their_records(tmp_path: Path) -> None:
    alive = new_record(tmp_path, "1", "embedded", os.getpid(), "")
    dead = new_record(tmp_path, "2", "left", 0, "")
    rows = rows_of([], [alive, dead], {})
    assert [(row.name, row.state) for row in rows] == [("embedded", UNKNOWN), ("left", ORPHANED)]


def test_the_roster_keeps_pid_and_port_for_as_long_as_their_attempt_lives() -> None:
    roster = Roster()

    def say(kind: Kind, after: str, attempt: int = 1, event: str | None = None, **more: Any) -> Standing:
        roster(Record(0, 5.0, "a", attempt, kind, event, None, after, **more))
        (found,) = roster.standings()
        return found

    say(Kind.TRANSITION, "Starting", event="Launched", pid=7, port=80, log="x.log")
    phase = say(Kind.PHASE, "Starting", detail={"phase": "weights"})
    assert (phase.pid, phase.port, phase.phase) == (7, 80, "weights")
    well = say(Kind.TRANSITION, "Healthy", event="BecameReady", detail={"model": "m"})
    assert (well.pid, well.model, well.phase) == (7, "m", "")
    trouble = {"diagnosis": {"summary": "it exited", "cause": "exited"}}
    say(Kind.TRANSITION, "Draining", event="Exited", detail=trouble)
    over = say(Kind.TRANSITION, "Backoff", event="Ended")
    assert (over.pid, over.port, over.log, over.trouble) == (None, None, "x.log", "it exited [exited]")
