"""Ray assumes that it owns the machine. A node of a cluster under Stoker does not, and a cluster that is not complete
is not ready. With a stand-in for Ray; `tests/engines/test_ray.py` has the real one."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.vllm import VllmAdapter
from lifecycle.errors import StartFailed
from lifecycle.server import Server
from tests.backends.test_vllm_parts import env as vllm_env
from tests.fake_ray import environment
from tests.processes.trees import is_alive
from tests.served import GUARD, given_up, healthy, make

pytestmark = pytest.mark.anyio
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
Node = Callable[..., Server]


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in keeps its nodes and what it was called with."""
    folder = tmp_path / "register"
    folder.mkdir()
    monkeypatch.setenv("FAKE_RAY", str(folder))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def node(tmp_path: Path, register: Path) -> Node:
    """Makes nodes of one cluster: `node(HEAD)`, `node(OTHER, 1)`."""
    python = environment(tmp_path)
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def node(address: str = HEAD, rank: int = 0, **more: Any) -> Server:
        settings: dict[str, Any] = {
            "python": str(python), "nodes": 2, "node_rank": rank, "node_address": address, "head_address": HEAD,
            "head_port": port, "num_cpus": 1, "num_gpus": 2, "allow_exposed": True, "max_attempts": 1,
            "name": f"ray-{address}", "startup_timeout": 20.0, **more,
        }  # fmt: skip
        if rank == 0:
            settings["port"] = settings["head_port"]
        return make(tmp_path, "ray", **settings)

    return node


def calls(register: Path) -> list[list[str]]:
    return [json.loads(line) for line in (register / "argv").read_text().splitlines()]


def ports(argv: list[str]) -> set[str]:
    """Every port that a node was told."""
    flags = [at for at, word in enumerate(argv) if word.startswith("--") and "port" in word]
    return {number for at in flags for number in argv[at + 1].split(",")}


def environ(register: Path, address: str) -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads((register / f"environ-{address}").read_text())
    return found


@pytest.mark.fault(64)
async def test_a_node_is_ended_by_its_own_processes_and_never_by_ray_stop_row_64(
    node: Node, register: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / "called"
    program = tmp_path / "path" / "ray"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {called}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    async with node(nodes=1) as head:
        await healthy(head)
        assert head.activities.process is not None
        pids = head.activities.process.pids()
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not called.exists()
    assert [argv[1] for argv in calls(register)] == ["start"]


@pytest.mark.fault(65)
async def test_a_port_that_is_taken_costs_a_quick_start_on_other_ports_row_65(node: Node, register: Path) -> None:
    (register / "port-in-use").touch()
    async with node(nodes=1, head_port=None) as head:
        await healthy(head)
        assert head.starts == 2
        first, second = map(ports, calls(register))
    assert len(first) > 10
    assert first != second  # the kernel may give one of them again


@pytest.mark.fault(65)
async def test_every_port_of_two_nodes_on_one_host_is_another_row_65(node: Node, register: Path) -> None:
    async with node() as head, node(OTHER, 1) as other:
        await healthy(head)
        await healthy(other)
        first, second = map(ports, calls(register))
    assert not first & second


@pytest.mark.fault(66)
async def test_a_node_is_told_its_cluster_whatever_others_have_left_in_the_environment_row_66(
    node: Node, register: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.77:6379")
    async with node() as head, node(OTHER, 1) as other:
        await healthy(head)
        await healthy(other)
        ours, theirs = sorted(calls(register), key=lambda argv: "--address" in argv)
    assert "--head" in ours
    assert theirs[theirs.index("--address") + 1] == f"{HEAD}:{head.config.head_port}"
    assert environ(register, HEAD)["RAY_ADDRESS"] is None
    assert environ(register, OTHER)["RAY_ADDRESS"] is None


@pytest.mark.fault(67)
async def test_a_node_has_a_temporary_folder_of_its_own_and_it_is_gone_afterwards_row_67(
    node: Node, register: Path
) -> None:
    async with node(nodes=1) as head:
        await healthy(head)
        folder = temp_dir(register)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert str(folder) == environ(register, HEAD)["TMPDIR"]
    assert not folder.exists()


def temp_dir(register: Path) -> Path:
    argv = calls(register)[-1]
    return Path(argv[argv.index("--temp-dir") + 1])


@pytest.mark.fault(68)
async def test_the_sockets_of_a_node_fit_however_long_tmpdir_is_row_68(
    node: Node, register: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * max(1, 90 - len(str(tmp_path))))
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    async with node(nodes=1) as head:
        await healthy(head)
        folder = temp_dir(register)
    longest = f"{folder}/session_2026-12-02_16-50-54_360724_4194304/sockets/plasma_store"
    assert len(os.fsencode(longest)) <= 107


@pytest.mark.fault(69)
async def test_ray_and_the_engine_on_it_know_a_host_by_the_same_address_row_69(node: Node, register: Path) -> None:
    async with node() as head, node(OTHER, 1) as other:
        await healthy(head)
        await healthy(other)
    for argv in calls(register):
        address = argv[argv.index("--node-ip-address") + 1]
        assert environ(register, address)["VLLM_HOST_IP"] == address
    said = vllm_env(
        nodes=2, tensor_parallel=2, node_address=HEAD, head_address=HEAD, head_port=6379,
        engine_args={"distributed-executor-backend": "ray"},
    )  # fmt: skip
    assert (said["VLLM_HOST_IP"], said["RAY_ADDRESS"]) == (HEAD, f"{HEAD}:6379")
    assert VllmAdapter.name == "vllm"


@pytest.mark.fault(70)
async def test_a_cluster_with_one_of_two_nodes_fails_within_its_deadline_and_names_them_row_70(node: Node) -> None:
    error = await given_up(node(startup_timeout=12.0))
    assert "startup_timeout = 12 s" in str(error)
    assert f"1 of 2 nodes of the Ray cluster at {HEAD}" in str(error)
    assert f"are alive: {HEAD} (2 GPUs)" in str(error)


@pytest.mark.fault(71)
async def test_a_head_notices_a_node_that_is_lost_and_says_which_row_71(node: Node) -> None:
    async with node(liveness_interval=0.1) as head, node(OTHER, 1) as other:
        await healthy(head)
        await healthy(other)
        assert other.activities.process is not None
        os.kill(other.activities.process.pid, signal.SIGKILL)
        with anyio.fail_after(GUARD):
            assert await other.ended() == "Failed"
            assert await head.ended() == "Failed"
        with pytest.raises(StartFailed, match=f"1 of 2 nodes .*lost: {OTHER}"):
            await head.healthy()


@pytest.mark.fault(72)
async def test_a_wrapper_that_is_killed_leaves_no_daemon_behind_row_72(
    node: Node, tmp_path: Path, register: Path
) -> None:
    (tmp_path / "wrapped").mkdir()
    python = environment(tmp_path / "wrapped", wrapper=True)
    async with node(nodes=1, python=str(python)) as head:
        await healthy(head)
        assert head.activities.process is not None
        pids = head.activities.process.pids()
        assert len(pids) > 1
        os.kill(head.activities.process.pid, signal.SIGKILL)
        with anyio.fail_after(GUARD):
            await head.ended()
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.fixture(autouse=True)
def _quick_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.asked.PAUSE", 0.05)
