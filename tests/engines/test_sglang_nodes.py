"""The real SGLang on two nodes of one host, tensor parallel 2, on the CPU, its kernel package stubbed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.config import load_config
from lifecycle.server import Server
from tests.engines.test_sglang import CPU, model
from tests.engines.test_sglang import pytestmark as needs_sglang
from tests.processes.trees import is_alive

__all__ = ["model"]
pytestmark = needs_sglang
GUARD = 300.0
Parts = Callable[..., Server]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def parts(model: str, tmp_path: Path) -> Parts:
    """Makes the parts of one server: `parts(rank)`."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def part(rank: int, **more: Any) -> Server:
        env = {**CPU["env"], "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
        config, adapter = load_config(
            "sglang", model=model, tensor_parallel=2, nodes=2, node_rank=rank, node_address="127.0.0.1",
            head_address="127.0.0.1", head_port=port, name=f"rank{rank}", max_attempts=1,
            state_dir=str(tmp_path / "state"), **{**CPU, "env": env}, **more,
        )  # fmt: skip
        return Server(config, adapter=adapter)

    return part


async def test_two_nodes_serve_one_model_and_the_part_ends_with_the_head(parts: Parts) -> None:
    async with parts(1) as part:
        async with parts(0) as head:
            with anyio.fail_after(GUARD):
                await head.healthy()
                await part.healthy()
            assert part.driver.facts.ready_path == "/health"
            with anyio.fail_after(GUARD):
                answer = await head.complete({"prompt": "hello", "max_tokens": 4, "ignore_eos": True})
            assert answer["usage"]["completion_tokens"] == 4
            assert part.activities.process is not None
            pids = part.activities.process.pids()
        with anyio.fail_after(GUARD):
            await part.ended()
        assert part.diagnosis is not None
        assert part.diagnosis.exit_code == 0, "the head has told it to end"
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_a_part_whose_head_is_killed_is_ended_without_waiting_for_its_grace(parts: Parts) -> None:
    async with parts(1) as part:
        async with parts(0) as head:
            with anyio.fail_after(GUARD):
                await head.healthy()
                await part.healthy()
            await head.kill()
        assert part.activities.process is not None
        pids = part.activities.process.pids()
        began = anyio.current_time()
        await part.stop()
        with anyio.fail_after(GUARD):
            await part.ended()
        assert anyio.current_time() - began < part.config.drain_limit
    assert [pid for pid in pids if is_alive(pid)] == []
