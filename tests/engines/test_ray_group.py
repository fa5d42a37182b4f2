"""A group on two hosts that are one: the nodes of a real Ray cluster, and what runs on it, a stand-in for vLLM."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.config import ServerConfig, load_config
from lifecycle.group import Group, GroupConfig, Role, Worker
from lifecycle.group.part import LocalPart
from lifecycle.resources.ports import free_port
from tests.engines.test_ray import GUARD, PYTHON
from tests.engines.test_ray import pytestmark as needs_ray
from tests.engines.vllm_over_ray import environment
from tests.processes.trees import is_alive

pytestmark = needs_ray
HEAD, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ServerConfig]:
    """Makes the configuration of each host."""
    token = tmp_path / "token"
    token.write_text("a token of this test")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # a GPU on each host, as far as Ray is concerned
    python = environment(tmp_path, PYTHON)

    def config(address: str, **more: Any) -> ServerConfig:
        settings: dict[str, Any] = {
            "model": "me/model", "python": str(python), "nodes": 2, "tensor_parallel": 2, "node_address": address,
            "engine_args": {"distributed-executor-backend": "ray"}, "env": {"HF_HUB_OFFLINE": "1"},
            "enforce_eager": True, "backoff_initial": 0.1, "max_retries": 20, "max_attempts": 2,
            "state_dir": str(tmp_path / f"state-{address}"), "cache_dir": str(tmp_path / "cache"), **more,
        }  # fmt: skip
        return load_config("vllm", **settings)[0]

    return config


def leader(part: LocalPart) -> int:
    assert part.server is not None
    pid = part.server.driver.facts.pid
    assert pid is not None
    return pid


def tree(*parts: LocalPart) -> frozenset[int]:
    found = [part.server.activities.process for part in parts if part.server is not None]
    return frozenset(pid for process in found if process is not None for pid in process.pids())


async def test_vllm_starts_when_the_nodes_have_joined_and_a_lost_node_ends_and_restarts_all_rows_69_71_96(
    config: Callable[..., ServerConfig],
) -> None:
    port, meeting = free_port("127.0.0.1"), GroupConfig(heartbeat_timeout=30.0)
    roles = [Role(rank, 2, HEAD, port, "a test") for rank in range(2)]
    group, worker = Group(config(HEAD), roles[0], group=meeting), Worker(config(OTHER), roles[1], group=meeting)
    (other,) = worker.parts.values()
    async with worker, group:
        with anyio.fail_after(GUARD):
            await group.healthy()
        told = await ask(group)
        assert sorted(one["ray"] for one in told) == [HEAD, OTHER]
        for one in told:
            assert one["VLLM_HOST_IP"] == one["ray"]
            assert one["HF_HUB_OFFLINE"] == one["TRANSFORMERS_OFFLINE"] == "1"
        everything = tree(other, *group.crew.local.values())
        assert len(everything) > 6
        seen = group.journal.seq
        os.kill(leader(other), signal.SIGKILL)
        with anyio.fail_after(GUARD):
            await group.driver.wait("Draining", after=seen)
            await group.driver.wait("Healthy", after=seen)
        assert [pid for pid in everything if is_alive(pid)] == []
        assert len(await ask(group)) == 2
        everything = tree(other, *group.crew.local.values())
    assert [pid for pid in everything if is_alive(pid)] == []


async def ask(group: Group) -> list[dict[str, Any]]:
    with anyio.fail_after(GUARD):
        answer = await group.complete({"prompt": "hello", "max_tokens": 1})
    told: list[dict[str, Any]] = json.loads(answer["choices"][0]["text"])
    return told
