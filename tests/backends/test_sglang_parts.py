"""SGLang on several hosts: flags and variables against real option tables; its ranks against a faithful fake."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.sglang import SglangAdapter, model_words
from lifecycle.adapter import capabilities_of
from lifecycle.config import ServerConfig, load_config
from lifecycle.errors import ConfigError
from lifecycle.group import Group, Role, Worker
from lifecycle.resources.ports import free_port
from lifecycle.server import Server
from tests.backends import standin
from tests.backends.test_sglang_command import TABLES, VERSIONS, after, command, config, engine
from tests.processes.trees import is_alive
from tests.served import GUARD, make

PAIR: dict[str, Any] = {
    "nodes": 2, "tensor_parallel": 2, "node_address": "127.0.0.1", "head_address": "10.0.0.1", "head_port": 29501,
}  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    """A backend knows nothing of event loops: one is enough."""
    return "asyncio"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_supported_version_takes_the_flags_of_every_part(version: str, rank: int) -> None:
    words = command(version, **PAIR, node_rank=rank).argv[3:]
    engine(version).check(words)
    assert after("--nnodes", words) == "2"
    assert after("--node-rank", words) == str(rank)
    assert after("--dist-init-addr", words) == "10.0.0.1:29501"
    assert "--nccl-port" not in words


def test_an_address_of_the_newer_family_is_written_so_that_its_port_can_be_told_apart() -> None:
    words = command(**{**PAIR, "head_address": "fd00::1"}).argv
    assert after("--dist-init-addr", words) == "[fd00::1]:29501"


def test_one_host_has_no_flag_of_several() -> None:
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & set(command().argv)


def test_all_parts_build_the_same_cache_and_only_the_head_holds_its_lock() -> None:
    assert model_words(config(**PAIR), engine()) == model_words(config(**PAIR, node_rank=1), engine())


def test_each_part_is_told_its_own_address_row_69(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    said = command(**PAIR).env
    assert said["SGLANG_HOST_IP"] == "127.0.0.1"
    assert said["GLOO_SOCKET_IFNAME"]
    assert "NCCL_SOCKET_IFNAME" not in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tensor_parallel": 3}, "nodes = 2 must divide tensor_parallel × pipeline_parallel = 3"),
        ({"node_rank": 2}, "node_rank = 2, but there are nodes = 2"),
        ({"data_parallel": 2}, "SGLang makes whole copies on one host only"),
        ({"engine_args": {"dist-init-addr": "h:1"}}, "use head_address and head_port"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_before_anything_starts(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SglangAdapter().check(config(**{**PAIR, **settings}))


def test_sglangs_own_flags_for_nodes_are_taken_for_the_settings() -> None:
    loaded, _ = load_config("sglang", model="m", tensor_parallel=2, engine_args={"nnodes": "2", "node-rank": 1})
    assert (loaded.nodes, loaded.node_rank, loaded.engine_args) == (2, 1, {})


def test_a_part_is_asked_for_its_health_and_for_nothing_else() -> None:
    can = capabilities_of(SglangAdapter(), config(**PAIR, node_rank=1))
    assert (can.probed, can.ready_paths, can.generates, can.reports_model) == (True, ("/health",), False, False)
    assert (can.load_path, can.abort, can.sleep) == (None, None, None)


# the ranks at work


Parts = Callable[[int], Server]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter with the fake in the place of SGLang."""
    parser = standin.FROM_JSON.format(path=str(TABLES / "sglang-0.5.23.json"))
    python = standin.environment(tmp_path, "0.5.23", parser)
    fake = Path(__file__).with_name("fake_sglang.py").read_text(encoding="utf-8")
    (next(python.parent.parent.glob("lib/*/site-packages")) / "sglang" / "launch_server.py").write_text(fake)
    return str(python)


@pytest.fixture
def parts(python: str, tmp_path: Path) -> Parts:
    """Makes the parts of one server: `parts(rank)`."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def part(rank: int) -> Server:
        return make(
            tmp_path, "sglang", model="me/model", python=python, device="cpu", max_attempts=1,
            cache_dir=str(tmp_path / "cache"), name=f"rank{rank}", node_rank=rank,
            **{**PAIR, "head_address": "127.0.0.1", "head_port": port},
        )  # fmt: skip

    return part


@pytest.mark.anyio
async def test_a_part_is_healthy_when_it_has_joined_and_ends_by_itself_with_the_head(parts: Parts) -> None:
    async with parts(1) as part:
        with anyio.fail_after(GUARD):
            await part.driver.wait("Starting")
        async with parts(0) as head:
            with anyio.fail_after(GUARD):
                await part.healthy()
                await head.healthy()
            assert part.driver.facts.ready_path == "/health"
        with anyio.fail_after(GUARD):
            await part.ended()
        assert part.diagnosis is not None
        assert part.diagnosis.exit_code == 0


@pytest.mark.anyio
async def test_a_part_whose_head_was_killed_lives_on_and_is_ended_without_waiting_for_its_grace(parts: Parts) -> None:
    async with parts(1) as part, parts(0) as head:
        with anyio.fail_after(GUARD):
            await part.healthy()
            await head.healthy()
        assert head.activities.process is not None
        os.kill(head.activities.process.pid, signal.SIGKILL)
        with anyio.fail_after(GUARD):
            assert await head.ended() == "Failed"
        assert part.state == "Healthy"
        assert part.activities.process is not None
        pids = part.activities.process.pids()
        began = anyio.current_time()
        await part.stop()
        with anyio.fail_after(GUARD):
            assert await part.ended() == "Stopped"
        assert anyio.current_time() - began < part.config.kill_limit
        assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.anyio
async def test_a_group_of_ranks_that_are_ready_only_together_starts_and_ends(python: str, tmp_path: Path) -> None:
    def config(rank: int) -> ServerConfig:
        return load_config(
            "sglang", model="me/model", python=python, device="cpu", nodes=2, tensor_parallel=2,
            state_dir=str(tmp_path / f"state-{rank}"), cache_dir=str(tmp_path / "cache"),
        )[0]  # fmt: skip

    port = free_port("127.0.0.1")
    roles = [Role(rank, 2, "127.0.0.1", port, "a test") for rank in range(2)]
    group, worker = Group(config(0), roles[0]), Worker(config(1), roles[1])
    async with worker, group:
        with anyio.fail_after(GUARD):
            await group.healthy()
            answer = await group.complete({"prompt": "hello", "max_tokens": 1})
        assert answer["choices"]
    assert group.state == "Stopped"
