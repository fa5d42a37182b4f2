"""The real Ray: nodes of clusters as servers, several of them on this host, each with an address of its own.

`STOKER_RAY_PYTHON` names the interpreter that Ray is installed in; default: the one that
`tests/engines/install_ray.py .venv/engines/ray` makes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from backends.ray_cluster import Said, ask_cluster
from lifecycle.config import load_config
from lifecycle.resources.tree import descendants
from lifecycle.server import Server
from tests.processes.trees import command_line, is_alive, parent_of, wait_for_end

PYTHON = Path(os.environ.get("STOKER_RAY_PYTHON") or Path(__file__).parents[2] / ".venv/engines/ray/bin/python")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="no Ray: python tests/engines/install_ray.py .venv/engines/ray, or name one in STOKER_RAY_PYTHON",
    ),
]
GUARD = 180.0
"""Seconds after which a wait that should have ended long ago fails the test: a node starts in 4 s on two idle cores."""
Make = Callable[..., Server]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes nodes: `make("127.0.0.2", 6379)` a head, `make("127.0.0.3", 6379, 1)` another node of it."""
    token = tmp_path / "token"
    token.write_text("a token of this test")

    def make(address: str, head_port: int, rank: int = 0, head: str = "127.0.0.2", **more: Any) -> Server:
        settings: dict[str, Any] = {
            "python": str(PYTHON), "nodes": 2, "node_rank": rank, "node_address": address, "head_address": head,
            "head_port": head_port, "num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000,
            "name": f"ray-{address}", "state_dir": str(tmp_path / "state"), "api_key_file": str(token),
            "max_attempts": 1, **more,
        }  # fmt: skip
        if rank == 0:
            settings["port"] = head_port
        config, adapter = load_config("ray", **settings)
        return Server(config, adapter=adapter)

    return make


@pytest.fixture
def port() -> int:
    return free_port()


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


async def healthy(*servers: Server) -> None:
    for server in servers:
        with anyio.fail_after(GUARD):
            await server.healthy()


async def ended(server: Server) -> str:
    with anyio.fail_after(GUARD):
        return await server.ended()


def tree(server: Server) -> dict[int, str]:
    """Every process of a node, its keeper's other children included, with its command line."""
    pid = server.driver.facts.pid
    assert pid is not None
    return {each: command_line(each) for each in descendants(parent_of(pid))}


def the(part: str, server: Server) -> int:
    """The one process of a node that is called so."""
    (pid,) = (pid for pid, line in tree(server).items() if part in line)
    return pid


async def nodes(server: Server, head: str) -> Said:
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a token of this test"}
    return await ask_cluster(str(PYTHON), head, server.host.ask, env=env, patience=0.0)


def alive(pids: dict[int, str]) -> list[str]:
    return [line for pid, line in pids.items() if is_alive(pid)]


async def test_two_nodes_make_a_cluster_and_leave_nothing_behind(make: Make, port: int) -> None:
    async with make("127.0.0.3", port, 1) as other, make("127.0.0.2", port) as head:
        await healthy(head, other)
        said = await nodes(head, f"127.0.0.2:{port}")
        assert sorted(node.address for node in said.alive) == ["127.0.0.2", "127.0.0.3"]
        pids = tree(head) | tree(other)
        assert any("gcs_server" in line for line in pids.values())
        assert sum("raylet/raylet" in line for line in pids.values()) == 2
        folders = {word.split("=")[1] for line in pids.values() for word in line.split() if "--session_dir=" in word}
        assert folders
    assert alive(pids) == []
    assert list(filter(os.path.exists, folders)) == []


async def test_a_cluster_that_is_not_complete_is_not_ready_and_says_what_is_missing_row_70(
    make: Make, port: int
) -> None:
    async with make("127.0.0.2", port, startup_timeout=45.0) as head:
        assert await ended(head) == "Failed"
    assert head.diagnosis is not None
    assert head.diagnosis.cause == "startup-timeout"
    assert f"1 of 2 nodes of the Ray cluster at 127.0.0.2:{port} are alive: 127.0.0.2 (0 GPUs)" in (
        head.diagnosis.summary
    )


async def test_a_node_that_leaves_is_noticed_by_the_head_row_71(make: Make, port: int) -> None:
    async with make("127.0.0.2", port, liveness_interval=1.0) as head:
        async with make("127.0.0.3", port, 1) as other:
            await healthy(head, other)
        assert await ended(head) == "Failed"
    assert head.diagnosis is not None
    assert head.diagnosis.cause == "unwell"
    assert "1 of 2 nodes" in head.diagnosis.summary
    assert "lost: 127.0.0.3" in head.diagnosis.summary


@pytest.mark.parametrize("daemon", ["raylet/raylet", "gcs/gcs_server"])
async def test_a_daemon_that_is_killed_ends_its_node_and_leaves_no_other_row_71(
    make: Make, port: int, daemon: str
) -> None:
    async with make("127.0.0.2", port, nodes=1) as head:
        await healthy(head)
        pids = tree(head)
        os.kill(the(daemon, head), signal.SIGKILL)
        assert await ended(head) == "Failed"
        assert head.diagnosis is not None
        assert head.diagnosis.cause in ("ray-daemon-died", "unwell")  # a probe may be faster than Ray's own look
    assert alive(pids) == []


async def test_the_starter_that_is_killed_takes_every_daemon_with_it_row_72(make: Make, port: int) -> None:
    async with make("127.0.0.2", port, nodes=1) as head:
        await healthy(head)
        pids = tree(head)
        assert head.driver.facts.pid is not None
        os.kill(head.driver.facts.pid, signal.SIGKILL)
        assert await ended(head) == "Failed"
    assert alive(pids) == []


async def test_clusters_side_by_side_have_ports_of_their_own_and_one_ends_without_the_other_rows_64_65(
    make: Make, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also: no program called `ray` is run, so `ray stop` is not."""
    called = tmp_path / "called"
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {called}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    second = free_port()
    async with make("127.0.0.4", second, head="127.0.0.4", nodes=1) as kept:
        await healthy(kept)
        before = tree(kept)
        async with make("127.0.0.2", port, nodes=1) as head:
            await healthy(head)
            ports = [listening(tree(server)) for server in (kept, head)]
            assert not ports[0] & ports[1]
        assert [line for pid, line in before.items() if not is_alive(pid) and "ray::" not in line] == []
        said = await nodes(kept, f"127.0.0.4:{second}")
        assert [node.address for node in said.alive] == ["127.0.0.4"]
    assert not called.exists()


def listening(pids: dict[int, str]) -> set[int]:
    return {
        connection.laddr.port
        for connection in psutil.net_connections("inet")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN and connection.laddr
    }


async def test_every_port_that_a_node_listens_on_was_chosen_and_held_for_it(make: Make, port: int) -> None:
    async with make("127.0.0.2", port, nodes=1) as head:
        await healthy(head)
        line = command_line(head.driver.facts.pid or 0)
        assert {number for number in listening(tree(head)) if str(number) not in line} == set()


async def test_a_token_is_asked_for(make: Make, port: int) -> None:
    async with make("127.0.0.2", port, nodes=1) as head:
        await healthy(head)
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "somebody else's"}
        said = await ask_cluster(str(PYTHON), f"127.0.0.2:{port}", head.host.ask, env=env, patience=0.0)
        assert said.error
        assert said.nodes == ()
        assert not any("a token of this test" in line for line in tree(head).values())
        log = head.activities.process
        assert log is not None
        assert not any("a token of this test" in line for line in log.tail(10_000))


@pytest.fixture
def foreign() -> Iterator[Path]:
    """What the cluster of somebody else leaves in the folder that Ray has for all users."""
    shared = Path(tempfile.gettempdir()) / "ray"
    mark = shared / "ray_current_cluster"
    if shared.exists():
        pytest.skip(f"{shared} is somebody's")
    shared.mkdir()
    mark.write_text("192.0.2.77:6379")
    shared.chmod(0o500)
    yield mark
    shared.chmod(0o700)
    mark.unlink()
    shared.rmdir()


def left(mark: Path) -> tuple[list[str], str]:
    return [entry.name for entry in mark.parent.iterdir()], mark.read_text()


async def test_a_foreign_cluster_in_tmp_changes_nothing_and_is_not_touched_rows_66_67(
    make: Make, port: int, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.77:6379")
    async with make("127.0.0.2", port, nodes=1) as head:
        await healthy(head)
    assert left(foreign) == ([foreign.name], "192.0.2.77:6379")


async def test_a_long_tmpdir_is_left_for_a_short_one_row_68(
    make: Make, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * (90 - len(str(tmp_path))))
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    async with make("127.0.0.2", port, nodes=1) as head:
        await healthy(head)
        sockets = [word for line in tree(head).values() for word in line.split() if "socket" in word]
        assert sockets
        assert not any(str(long) in word for word in sockets)
    assert list(long.iterdir()) == []


async def test_what_runs_on_the_cluster_is_told_the_nodes_own_address_and_offline_mode_rows_69_96(
    make: Make, port: int
) -> None:
    """By a task that prints its environment, on each node."""
    script = (
        "import os, ray, json\n"
        "ray.init(address=os.environ['RAY_ADDRESS'], log_to_driver=False)\n"
        "@ray.remote(num_cpus=1)\n"
        "def told():\n"
        "    return {name: os.environ.get(name) for name in ('VLLM_HOST_IP', 'HF_HUB_OFFLINE')}\n"
        "places = [node['NodeID'] for node in ray.nodes()]\n"
        "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At\n"
        "print(json.dumps(ray.get([told.options(scheduling_strategy=At(p, soft=False)).remote() for p in places])))\n"
    )
    env = {"HF_HUB_OFFLINE": "1"}
    async with make("127.0.0.2", port, env=env) as head, make("127.0.0.3", port, 1, env=env) as other:
        await healthy(head, other)
        environ = {
            **os.environ, "RAY_ADDRESS": f"127.0.0.2:{port}", "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "a token of this test",
        }  # fmt: skip
        with anyio.fail_after(GUARD):
            done = await anyio.run_process([str(PYTHON), "-c", script], env=environ, stderr=subprocess.STDOUT)
        last = done.stdout.decode().splitlines()[-1]
        assert '"VLLM_HOST_IP": "127.0.0.2"' in last
        assert '"VLLM_HOST_IP": "127.0.0.3"' in last
        assert last.count('"HF_HUB_OFFLINE": "1"') == 2


async def test_the_end_is_seen_also_when_a_node_is_killed_while_it_starts(make: Make, port: int) -> None:
    async with make("127.0.0.2", port, nodes=1) as head:
        with anyio.fail_after(GUARD):
            await head.driver.wait("Starting")
        pids = tree(head)
        await head.kill()
    assert wait_for_end(pids) == set()
