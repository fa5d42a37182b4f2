"""`stoker serve --detach`, `--attach`, `--keep-for` and `--idle-timeout`, as commands on real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from typing import Any

import pytest

from lifecycle.cli.detach import undetached
from lifecycle.resources.desk import Status, managers
from lifecycle.resources.reap import is_alive, start_time
from tests.cli.command import Stoker, wait_for
from tests.cli.test_operating import URL, name_of, shown
from tests.processes.trees import wait_for_end


def manager_of(name: str) -> int:
    (found,) = {said.manager for said in managers() if isinstance(said, Status) and said.servers[0].name == name}
    return found


def serve(stoker: Stoker, *more: str) -> subprocess.Popen[str]:
    return stoker.start("serve", "--backend", "echo", *more)


def asked(url: str) -> dict[str, Any]:
    body = json.dumps({"prompt": "Say x", "max_tokens": 3}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_a_detached_server_serves_on_and_is_found_and_ended_by_its_name(stoker: Stoker) -> None:
    name = name_of(stoker)
    ended = stoker.run("serve", "--detach", name, "--backend", "echo")
    assert ended.code == 0
    assert ended.out.startswith(URL)
    assert "Starting" in ended.err
    assert asked(ended.out.strip())["choices"]
    (row,) = shown(stoker)
    assert (row["name"], row["state"]) == (name, "Healthy")
    assert os.getsid(row["manager"]) == row["manager"], "a terminal that goes takes its session with it"
    again = stoker.run("serve", "--detach", name, "--backend", "echo")
    assert (again.code, f"manager {row['manager']} tends" in again.err) == (2, True)
    assert "listening" in stoker.run("logs", name).out
    assert stoker.run("stop", name).code == 0
    assert shown(stoker) == []


def test_a_detached_server_that_never_serves_ends_the_command_with_its_code_and_its_words(stoker: Stoker) -> None:
    ended = stoker.run("serve", "--detach", name_of(stoker), "--command", "/no/such/program {port}")
    assert ended.code == 1
    assert "/no/such/program" in ended.err


def test_the_word_detach_is_taken_out_of_the_managers_command_line() -> None:
    assert undetached(["serve", "--detach=a", "--json"], "a") == ["serve", "--name", "a", "--json"]
    assert undetached(["serve", "--det", "a"], "a") == ["serve", "--name", "a"]
    assert undetached(["serve", "--", "--detach", "x"], "a") == ["serve", "--", "--detach", "x"]


def test_a_manager_that_was_killed_is_followed_by_one_that_attaches(stoker: Stoker) -> None:
    name = name_of(stoker)
    first = serve(stoker, "--name", name, "--keep-for", "300")
    wait_for(first, "should its manager die")
    (row,) = shown(stoker)
    first.kill()
    first.wait()
    (left,) = shown(stoker)
    assert (left["state"], left["port"], left["pids"]) == ("kept", row["port"], row["pids"])
    second = serve(stoker, "--attach", name, "--keep-for", "300")
    assert wait_for(second, URL).strip() == f"{URL}{row['port']}"
    (now,) = shown(stoker)
    assert (now["pids"], now["manager"]) == (row["pids"], second.pid)
    assert stoker.run("stop", name).code == 0
    assert second.wait(30) == 0


def test_a_manager_is_replaced_on_purpose_and_what_is_kept_alone_can_be_stopped(stoker: Stoker) -> None:
    name = name_of(stoker)
    first = serve(stoker, "--name", name, "--keep-for", "300")
    wait_for(first, "should its manager die")
    (row,) = shown(stoker)
    assert stoker.run("stop", name, "--leave").code == 0
    assert first.wait(30) == -signal.SIGKILL
    assert is_alive(row["pids"][0], start_time(row["pids"][0]))
    ended = stoker.run("stop", name)
    assert (ended.code, "was kept since" in ended.out) == (0, True)
    wait_for_end(row["pids"])
    assert shown(stoker) == []


def test_what_would_not_be_kept_is_not_left(stoker: Stoker) -> None:
    name = name_of(stoker)
    process = serve(stoker, "--name", name)
    wait_for(process, URL)
    ended = stoker.run("stop", name, "--leave")
    assert (ended.code, "would not be kept" in ended.err) == (2, True)
    assert stoker.run("stop", name).code == 0
    assert process.wait(30) == 0


def test_an_outsiders_request_starts_a_server_that_was_ended_because_nobody_needed_it(stoker: Stoker) -> None:
    name = name_of(stoker)
    process = serve(stoker, "--name", name, "--idle-timeout", "0.5")
    url = wait_for(process, URL).strip()
    wait_for(process, "Dormant")
    (row,) = shown(stoker)
    assert (row["state"], row["pids"]) == ("Dormant", [])
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        pass  # who only looks wakes nobody
    assert shown(stoker)[0]["state"] == "Dormant"
    assert asked(url)["choices"]
    assert wait_for(process, URL).strip() == url
    assert stoker.run("stop", name).code == 0
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--replicas", "2", "--idle-timeout", "60"), "idle_timeout = 60"),
        (("--replicas", "2", "--keep-for", "60"), "keep_for = 60"),
        (("--replicas", "2", "--attach", "x"), "--attach x"),
        (("--idle-timeout", "60", "--idle-action", "sleep"), "cannot sleep"),
        (("--idle-timeout", "-1"), "idle_timeout = -1"),
        (("--detach", "a/b"), "'a/b'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_started(
    stoker: Stoker, words: tuple[str, ...], named: str
) -> None:
    ended = stoker.run("serve", "--backend", "echo", *words)
    assert (ended.code, named in ended.err) == (2, True), ended.err
