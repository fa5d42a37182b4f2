"""A group that runs the real vLLM on two nodes of one host, without Ray, tensor parallel 2, on the CPU: if either part
is lost, both end, and both come back."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.config import ServerConfig, load_config
from lifecycle.group import Group, GroupConfig, Role, Worker
from lifecycle.group.part import LocalPart
from lifecycle.resources.ports import free_port
from tests.engines.test_vllm import ENV, GUARD, HELLO, NAME, PYTHON
from tests.engines.test_vllm import pytestmark as needs_vllm
from tests.processes.trees import is_alive, wait_for_end

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    script = Path(__file__).parent / "tiny_model.py"
    subprocess.run([PYTHON, script, folder], check=True, capture_output=True)
    return str(folder)


def tree(part: LocalPart) -> frozenset[int]:
    assert part.server is not None
    process = part.server.activities.process
    assert process is not None
    return process.pids()


def leader(part: LocalPart) -> int:
    assert part.server is not None
    pid = part.server.driver.facts.pid
    assert pid is not None
    return pid


async def test_either_part_lost_both_end_and_serve_again_and_a_stop_leaves_nothing(model: str, tmp_path: Path) -> None:
    def config(rank: int) -> ServerConfig:
        settings: dict[str, Any] = {
            "model": model, "served_name": NAME, "python": str(PYTHON), "env": ENV, "context_length": 256,
            "enforce_eager": True, "tensor_parallel": 2, "nodes": 2, "backoff_initial": 0.1, "max_retries": 20,
            "state_dir": str(tmp_path / f"state-{rank}"), "cache_dir": str(tmp_path / f"cache-{rank}"),
        }  # fmt: skip
        return load_config("vllm", **settings)[0]

    port, meeting = free_port("127.0.0.1"), GroupConfig(heartbeat_timeout=30.0)
    roles = [Role(rank, 2, "127.0.0.1", port, "a test") for rank in range(2)]
    group, worker = Group(config(0), roles[0], group=meeting), Worker(config(1), roles[1], group=meeting)
    (headless,) = worker.parts.values()
    async with worker, group:
        for starts, victim in enumerate((headless, group.crew.serving), 1):
            with anyio.fail_after(GUARD):
                assert (await group.chat(HELLO))["usage"]["completion_tokens"] == 8
            assert group.starts == starts
            everything = tree(headless) | tree(group.crew.serving)
            seen = group.journal.seq
            os.kill(leader(victim), signal.SIGKILL)
            with anyio.fail_after(GUARD):
                await group.driver.wait("Gathering", after=seen)
            assert [pid for pid in everything if is_alive(pid)] == []
            assert group.diagnosis is not None
            assert f"member {victim.member.name!r}" in group.diagnosis.summary
        with anyio.fail_after(GUARD):
            await group.healthy()
        everything = tree(headless) | tree(group.crew.serving)
        await group.stop()
        with anyio.fail_after(GUARD):
            assert (await group.ended(), await worker.ended()) == ("Stopped", "Stopped")
    assert wait_for_end(everything, 0.0) == set(), "each part was ended by its own host, the head first"
