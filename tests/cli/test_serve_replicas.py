"""`stoker serve --replicas`: several servers behind one URL, until it is told to stop. The router is the fake one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lifecycle.journal import read_journal
from tests.cli.command import Stoker, until, wait_for
from tests.fake import DIRECT
from tests.fronts import FAKE

URL = "http://127.0.0.1:"


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration file with two replicas and the fake router."""
    path = tmp_path / "config.toml"
    path.write_text(
        f"""
        backend = "echo"
        replicas = 2
        min_healthy = 2
        backoff_initial = 0
        router_python = {json.dumps(sys.executable)}
        router_policy = "round_robin"
        [router_settings]
        env = {{ PYTHONPATH = {json.dumps(FAKE)} }}
        """
    )
    return str(path)


def ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=30)
    return out


def models(url: str) -> Any:
    with DIRECT.open(f"{url}/v1/models", timeout=10) as answer:
        return [each["id"] for each in json.loads(answer.read())["data"]]


def test_it_prints_one_url_when_enough_replicas_serve_and_ends_the_router_first(stoker: Stoker, config: str) -> None:
    process = stoker.start("serve", "--config", config, "--journal", "journal")
    url = wait_for(process, URL).strip()
    assert models(url) == ["echo"]
    process.terminate()
    out = ended(process)
    assert process.returncode == 0
    assert URL not in out
    ends = [each.server for each in read_journal(stoker.folder / "journal") if each.event == "Ended"]
    assert sorted(ends) == ["echo", "echo-0", "echo-1", "echo-router"]
    assert ends[0] == "echo-router"


def test_a_second_interrupt_is_one_hundred_and_thirty(stoker: Stoker, config: str) -> None:
    process = stoker.start("serve", "--config", config, "--set", "token_rate=0.2", "--set", "drain_timeout=200",
                           "--set", "terminate_timeout=300")  # fmt: skip
    url = wait_for(process, URL).strip()
    body = json.dumps({"model": "echo", "prompt": "x", "max_tokens": 500}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as outsider:
        outsider.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        process.send_signal(signal.SIGINT)
        wait_for(process, "draining")
        process.send_signal(signal.SIGINT)
        ended(process)
    assert process.returncode == 130


def test_hangup_restarts_the_replicas_one_after_the_other_and_the_url_stays(stoker: Stoker, config: str) -> None:
    process = stoker.start("serve", "--config", config, "--rolling-restart", "--journal", "journal")
    url = wait_for(process, URL).strip()
    process.send_signal(signal.SIGHUP)
    wait_for(process, "every replica was restarted")
    assert models(url) == ["echo"]
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert process.returncode == 0
    healthy = [each.server for each in read_journal(stoker.folder / "journal") if each.after == "Healthy"
               and each.event == "BecameReady"]  # fmt: skip
    assert sorted(healthy) == ["echo-0", "echo-0", "echo-1", "echo-1", "echo-router"]


def test_a_router_that_dies_serves_the_same_url_again_and_says_so(stoker: Stoker, config: str) -> None:
    process = stoker.start("serve", "--config", config, "--json")
    lines = [json.loads(line) for line in until(process, lambda line: '"url"' in line)]
    (router,) = [each["pid"] for each in lines if (each["server"], each.get("event")) == ("echo-router", "Launched")]
    os.kill(router, signal.SIGKILL)
    again = json.loads(wait_for(process, '"kind":"url"'))
    assert again == lines[-1]
    assert models(again["url"]) == ["echo"]
    process.terminate()
    ended(process)
    assert process.returncode == 0


def test_a_port_that_is_taken_is_the_end_of_all_with_its_holder(stoker: Stoker, config: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = stoker.run("serve", "--config", config, "--port", str(other.getsockname()[1]))
    assert done.code == 1
    assert f"pid {os.getpid()}" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replicas", "2", "--backend", "echo"], "pip install 'stoker[router]'"),
        (["--replicas", "2", "--backend", "echo", "--router", "echo"], "is a backend, but no router"),
        (["--replicas", "2", "--backend", "echo", "--router", "ruoter"], "did you mean 'router'"),
        (["--replicas", "2", "--backend", "echo", "--router-python", sys.executable, "--router-policy", "fastest"],
         "policy = 'fastest' is none of"),
        (["--replicas", "2", "--backend", "echo", "--host", "0.0.0.0"], "without a key"),
        (["--replicas", "2", "--min-healthy", "3", "--backend", "echo"], "min_healthy = 3 is more than replicas = 2"),
        (["--replicas", "2", "--base-url", "http://127.0.0.1:1"], "starts no server"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_started(stoker: Stoker, words: list[str], said: str) -> None:
    done = stoker.run("serve", *words, env={"PATH": "/usr/bin:/bin"})
    assert done.code == 2
    assert said in done.err
    assert done.out == ""
