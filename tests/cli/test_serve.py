"""`stoker serve`: one server, healthy until it is told to stop; exit codes that a script can trust."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from lifecycle.journal import read_journal
from tests.cli.command import Stoker, argv, until, wait_for
from tests.fake import DIRECT, fake_command

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_it_prints_the_url_when_healthy_and_stops_as_asked(stoker: Stoker, number: signal.Signals) -> None:
    process = stoker.start("serve", "--backend", "echo", "--journal", "journal")
    url = wait_for(process, "http://127.0.0.1:").strip()
    with DIRECT.open(f"{url}/v1/models", timeout=10) as answer:
        assert json.loads(answer.read())["data"][0]["id"] == "echo"
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Stopped" in out
    assert list(read_journal(stoker.folder / "journal"))[-1].after == "Stopped"


@pytest.mark.parametrize("number", SIGNALS)
def test_told_to_stop_while_it_starts_it_stops(stoker: Stoker, number: signal.Signals) -> None:
    command = fake_command(no_bind=True, on_term="ignore")
    process = stoker.start("serve", "--command", command, "--model", "fake", "--set", "terminate_timeout=1")
    wait_for(process, "Starting")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Stopped" in out


def test_a_second_interrupt_is_one_hundred_and_thirty(stoker: Stoker) -> None:
    process = stoker.start(
        "serve", "--command", fake_command(on_term="ignore"), "--model", "fake", "--set", "drain_timeout=200"
    )
    wait_for(process, "http://")
    process.send_signal(signal.SIGINT)
    wait_for(process, "once more ends at once")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_given_up_is_one_with_diagnosis_last_lines_and_log(stoker: Stoker) -> None:
    command = fake_command(say=["first words", "last words"], exit_before_bind=True, exit_code=7)
    ended = stoker.run("serve", "--command", command, "--model", "fake", "--set", "backoff_initial=0")
    assert ended.code == 1
    assert "exited with code 7 before it was ready" in ended.err
    assert "| last words" in ended.err
    (log,) = [line.split(": ", 1)[1] for line in ended.err.splitlines() if "whole log:" in line]
    assert "first words" in Path(log).read_text()
    assert ended.out == ""


def test_a_port_that_is_taken_is_refused_with_its_holder(stoker: Stoker) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = stoker.run("serve", "--backend", "echo", "--port", str(port))
    assert ended.code == 1
    assert f"port {port} is taken by" in ended.err
    assert f"pid {os.getpid()}" in ended.err


def test_a_port_that_another_stoker_has_leased_is_refused_with_its_holder(stoker: Stoker) -> None:
    first = stoker.start("serve", "--backend", "echo")
    url = wait_for(first, "http://127.0.0.1:").strip()
    ended = stoker.run("serve", "--backend", "echo", "--port", url.rpartition(":")[2])
    assert "(pid " in ended.err
    first.terminate()
    first.communicate(timeout=30)


def test_json_is_the_journal_on_standard_output(stoker: Stoker) -> None:
    process = stoker.start("serve", "--backend", "echo", "--json")
    lines = list(until(process, lambda line: '"url"' in line))
    process.terminate()
    out, _ = process.communicate(timeout=30)
    found = [json.loads(line) for line in (*lines, *out.splitlines()) if line.startswith("{")]
    for record in found:
        if record["kind"] == "url":
            assert record["url"].startswith("http://127.0.0.1:")
            continue
        for key in ("seq", "time", "server", "attempt", "kind", "event", "before", "after", "detail"):
            assert key in record
    assert [each["after"] for each in found if each["kind"] == "transition"] == [
        "Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped",
    ]  # fmt: skip
    (starting,) = [each for each in found if each["kind"] == "transition" and each["after"] == "Starting"]
    assert starting["pid"] > 0
    assert starting["port"] > 0
    assert Path(starting["log"]).exists()


def test_a_server_that_dies_is_started_again(stoker: Stoker) -> None:
    process = stoker.start("serve", "--backend", "echo", "--json", "--set", "backoff_initial=0")
    *_, healthy = (json.loads(line) for line in until(process, lambda line: '"pid":' in line and '"port":' in line
                                                     and '"after":"Starting"' in line))  # fmt: skip
    wait_for(process, '"url"')
    os.kill(healthy["pid"], signal.SIGKILL)
    wait_for(process, '"url"')
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_key_is_never_shown(stoker: Stoker) -> None:
    key = "sk-very-secret-0123456789"
    command = fake_command(show_environment=True, need_key="SERVER_KEY", say=[f"the key is {key}"])
    words = ["serve", "--command", command, "--model", "fake", "--set", "key_variable=SERVER_KEY"]
    process = subprocess.Popen(
        argv([*words, "--api-key-env", "MY_KEY", "--json", "--journal", "journal"]), cwd=stoker.folder, text=True,
        env={**stoker.environment, "MY_KEY": key}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = list(until(process, lambda line: '"url"' in line))
    (starting,) = [json.loads(line) for line in said if '"after":"Starting"' in line and '"transition"' in line]
    cmdline = Path(f"/proc/{starting['pid']}/cmdline").read_text().replace("\0", " ")
    process.terminate()
    out, _ = process.communicate(timeout=30)
    log = Path(starting["log"]).read_text()
    assert "SERVER_KEY=***" in log
    for text in (*said, out, log, (stoker.folder / "journal").read_text()):
        assert key not in text
    assert key not in cmdline.replace(f"the key is {key}", ""), "only where the test itself put it"
