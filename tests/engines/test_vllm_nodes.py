"""The real vLLM on two nodes of one host, without Ray: the head and a headless part, tensor parallel 2, on the CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from lifecycle.config import load_config
from lifecycle.resources.tree import descendants
from lifecycle.server import Server
from tests.engines.test_vllm import ENV, GUARD, HELLO, NAME, PYTHON
from tests.engines.test_vllm import pytestmark as needs_vllm
from tests.processes.trees import is_alive, wait_for_end

pytestmark = needs_vllm

Make = Callable[..., Server]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    script = Path(__file__).parent / "tiny_model.py"
    subprocess.run([PYTHON, script, folder], check=True, capture_output=True)
    return str(folder)


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture
def make(model: str, tmp_path: Path) -> Make:
    """Makes the parts of one server: `make(rank)`."""
    port = free_port()

    def make(rank: int, **more: Any) -> Server:
        settings: dict[str, Any] = {
            "model": model, "served_name": NAME, "python": str(PYTHON), "env": ENV, "context_length": 256,
            "enforce_eager": True, "max_attempts": 1, "tensor_parallel": 2, "nodes": 2, "node_rank": rank,
            "node_address": "127.0.0.1", "head_address": "127.0.0.1", "head_port": port, "name": f"rank{rank}",
            "state_dir": str(tmp_path / "state"), "cache_dir": str(tmp_path / "cache"), **more,
        }  # fmt: skip
        config, adapter = load_config("vllm", **settings)
        return Server(config, adapter=adapter)

    return make


def tree(server: Server) -> frozenset[int]:
    process = server.activities.process
    assert process is not None
    return process.pids()


async def test_two_nodes_serve_one_model_and_each_ends_with_nothing_left(make: Make) -> None:
    async with make(1) as part:
        with anyio.fail_after(GUARD):
            await part.healthy()  # nobody can ask it: it is Healthy at once, long before the head is
        async with make(0) as head:
            with anyio.fail_after(GUARD):
                await head.healthy()
            with anyio.fail_after(GUARD):
                answer = await head.chat(HELLO)
            assert answer["usage"]["completion_tokens"] == 8
            assert part.state == "Healthy"
            heads = tree(head)
        assert head.state == "Stopped"
        parts = tree(part)
        assert parts, "vLLM's headless node ends with the head now: its grace could be longer"
        began = anyio.current_time()
        await part.stop()
        with anyio.fail_after(GUARD):
            await part.ended()
        assert anyio.current_time() - began < part.config.drain_limit
    assert [pid for pid in heads | parts if is_alive(pid)] == []


async def test_a_headless_part_that_is_killed_has_crashed_and_leaves_no_worker(make: Make) -> None:
    async with make(1) as part, make(0) as head:
        with anyio.fail_after(GUARD):
            await head.healthy()
        process = part.activities.process
        assert process is not None
        workers = set(descendants(process.pid))
        assert workers
        os.kill(process.pid, signal.SIGKILL)
        with anyio.fail_after(GUARD):
            assert await part.ended() == "Failed"
        assert wait_for_end(workers) == set()
        assert part.diagnosis is not None
        assert part.diagnosis.cause == "exited"
        assert head.state == "Healthy", "vLLM notices now: the group's own rule could be simpler"
        await head.kill()


async def test_only_the_meeting_point_is_open_to_other_hosts(make: Make) -> None:
    """Loopback was asked for; torch's store, at which the ranks meet, listens on every address all the same."""
    async with make(1) as part, make(0) as head:
        with anyio.fail_after(GUARD):
            await head.healthy()
        pids = tree(head) | tree(part)
        open_to_all = [
            connection.laddr.port
            for connection in psutil.net_connections("inet")
            if connection.pid in pids
            and connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.ip not in ("127.0.0.1", "::1")
        ]
        await head.kill()
        await part.kill()
    assert set(open_to_all) <= {head.config.head_port}


async def test_copies_on_two_nodes_are_served_at_one_port(make: Make) -> None:
    copies: dict[str, Any] = {"tensor_parallel": 1, "data_parallel": 2}
    async with make(1, **copies) as part:
        async with make(0, **copies) as head:
            with anyio.fail_after(GUARD):
                await head.healthy()
                answers = [await head.chat(HELLO) for _ in range(4)]
            assert [answer["usage"]["completion_tokens"] for answer in answers] == [8] * 4
            heads = tree(head)
        parts = tree(part)
        await part.stop()
        with anyio.fail_after(GUARD):
            await part.ended()
    assert [pid for pid in heads | parts if is_alive(pid)] == []
