"""A group over real Ray on two hosts with addresses of their own, as far as two network namespaces of this one are
that: the commands that people type, a cable between them, and what becomes of them when it is pulled.

Needs the right to make network namespaces (root, or a container that has CAP_NET_ADMIN and CAP_SYS_ADMIN).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_ray import PYTHON
from tests.engines.test_ray import pytestmark as needs_ray
from tests.engines.vllm_over_ray import environment
from tests.group import commands
from tests.group.commands import Command
from tests.processes.trees import processes_named, wait_for_end

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def ip(*words: str) -> bool:
    return subprocess.run(("ip", *words), capture_output=True).returncode == 0


def may_make_namespaces() -> bool:
    """Tried on one that is removed again."""
    name = f"stk-try-{os.getpid()}"
    return shutil.which("ip") is not None and ip("netns", "add", name) and ip("netns", "del", name)


pytestmark = [
    *(mark for mark in needs_ray if mark.name != "anyio"),
    pytest.mark.skipif(not may_make_namespaces(), reason="network namespaces cannot be made here"),
]


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them."""
    first, second = (f"stk-{os.getpid()}-{rank}" for rank in range(2))
    try:
        for name in (first, second):
            assert ip("netns", "add", name)
            assert ip("-n", name, "link", "set", "lo", "up")
        assert ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in zip((first, second), ADDRESSES, strict=True):
            assert ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            assert ip("-n", name, "link", "set", "cable", "up")
        yield first, second
    finally:
        ip("netns", "del", first)
        ip("netns", "del", second)


@pytest.fixture
def begin(tmp_path: Path, hosts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts the command of one host."""
    monkeypatch.setattr(commands, "GUARD", 180.0)
    token = tmp_path / "token"
    token.write_text("a token of this test")
    python = environment(tmp_path, PYTHON)
    begun: list[Command] = []

    def begin(rank: int) -> Command:
        settings = ("backoff_initial=0", "heartbeat_timeout=5", "gather_timeout=60", "drain_timeout=5",
                    f"state_dir={tmp_path}/state-{rank}", f"cache_dir={tmp_path}/cache", "max_attempts=5",
                    f"node_address={ADDRESSES[rank]}", "startup_timeout=90")  # fmt: skip
        words = [
            "ip", "netns", "exec", hosts[rank], sys.executable, "-m", "lifecycle.cli", "serve", "--json", "--name", "g",
            "--backend", "vllm", "--model", "me/model", "--python", str(python), "--nodes", "2",
            "--node-rank", str(rank), "--head", f"{ADDRESSES[0]}:7011", "--tensor-parallel", "2",
            *(word for setting in settings for word in ("--set", setting)),
            "--", "--distributed-executor-backend", "ray", "--enforce-eager",
        ]  # fmt: skip
        environ = {
            **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "CUDA_VISIBLE_DEVICES": "0",
        }  # fmt: skip
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
        begun.append(Command(process))
        return begun[-1]

    yield begin
    for command in begun:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def ask(host: str, url: str) -> list[dict[str, Any]]:
    """Where the workers of the server on `host` are."""
    script = (
        "import json, sys, urllib.request as u\n"
        "data = json.dumps({'model': 'me/model', 'prompt': 'hello'}).encode()\n"
        "r = u.Request(sys.argv[1] + '/v1/completions', data, {'content-type': 'application/json'})\n"
        "print(json.load(u.build_opener(u.ProxyHandler({})).open(r, timeout=60))['choices'][0]['text'])\n"
    )
    words = ("ip", "netns", "exec", host, sys.executable, "-c", script, url)
    found: list[dict[str, Any]] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def test_two_hosts_make_a_cluster_lose_each_other_end_and_come_back_rows_69_71(
    hosts: tuple[str, str], begin: Any, tmp_path: Path
) -> None:
    head, other = begin(0), begin(1)
    first = head.entered("Healthy", "g")
    head.wait(lambda each: each["kind"] == "url")
    told = ask(hosts[0], head.url())
    assert sorted(one["ray"] for one in told) == list(ADDRESSES)
    assert all(one["VLLM_HOST_IP"] == one["ray"] for one in told)
    before = processes_named("raylet/raylet") | processes_named("gcs/gcs_server")
    ours = {pid for pid in before if namespace(pid) in {namespace(each.process.pid) for each in (head, other)}}
    assert len(ours) == 3
    assert ip("-n", hosts[1], "link", "set", "cable", "down")
    head.entered("Draining", "g", first)
    assert wait_for_end(ours, 60.0) == set()
    assert ip("-n", hosts[1], "link", "set", "cable", "up")
    head.wait(lambda each: each["kind"] == "url", head.entered("Healthy", "g", first))
    assert len(ask(hosts[0], head.url())) == 2
    head.signal(signal.SIGTERM)
    assert (head.code(), other.code()) == (0, 0)


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")
