"""The command line and environment of a Ray node, what it has to give away, and what a cluster lacks. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from backends import ray as backend
from backends.ray import OURS, SESSION, Installed, RayAdapter, RayOptions, cpus, gpus_of, has_token, store_size
from backends.ray_cluster import MARK, Node, Said, missing_gpus, missing_node, missing_nodes, read_said
from backends.vllm import VllmAdapter
from lifecycle.adapter import PRIVATE, Command, Launch, Prepared, capabilities_of, load_adapter
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, LaunchError
from lifecycle.group.plan import Place, members_of, placed

HEAD: dict[str, Any] = {"nodes": 2, "node_address": "10.0.0.1", "head_address": "10.0.0.1", "head_port": 6379,
                        "port": 6379, "allow_exposed": True, "num_cpus": 4, "num_gpus": 2}  # fmt: skip
OTHER: dict[str, Any] = {**HEAD, "node_address": "10.0.0.2", "node_rank": 1, "port": None}
MIB = 1 << 20


def config(**settings: Any) -> ServerConfig:
    chosen = {key: settings.pop(key) for key in list(settings) if key in RayOptions.__dataclass_fields__}
    return ServerConfig("ray", options=chosen, **settings)


def command(*, client: bool = False, **settings: Any) -> Command:
    made = config(**settings)
    extra = tuple(range(9000, 9000 + capabilities_of(RayAdapter(), made).extra_ports))
    ray = Installed("/ray/bin/python", client)
    return RayAdapter().command(Launch(made, 6379, extra, 1, Prepared(None, ray)))


def after(flag: str, words: Sequence[str]) -> str:
    return words[words.index(flag) + 1]


def told(words: Sequence[str]) -> list[str]:
    """Every port that a command line names for the node itself."""
    flags = [at for at, word in enumerate(words) if word.startswith("--") and "port" in word]
    return [number for at in flags for number in words[at + 1].split(",")]


def test_the_head_and_another_node_differ_in_what_they_are() -> None:
    head, other = command(**HEAD).argv, command(**OTHER).argv
    assert head[:5] == other[:5] == ("/ray/bin/python", "-m", "ray.scripts.scripts", "start", "--block")
    assert "--head" in head
    assert "--address" not in head
    assert after("--port", head) == "6379"
    assert "--head" not in other
    assert after("--address", other) == "10.0.0.1:6379"
    assert after("--node-manager-port", other) == "6379", "its own port: there it is known to listen"
    assert after("--node-ip-address", other) == "10.0.0.2"


@pytest.mark.parametrize("settings", [HEAD, OTHER, {**HEAD, "port": None, "head_port": 7777}], ids=[0, 1, "member"])
@pytest.mark.parametrize("client", [False, True])
def test_every_port_is_said_and_none_twice(settings: dict[str, Any], client: bool) -> None:
    words = command(client=client, **settings).argv
    assert len(told(words)) == len(set(told(words)))
    for flag in ("node-manager-port", "object-manager-port", "dashboard-agent-grpc-port", "runtime-env-agent-port",
                 "dashboard-agent-listen-port", "metrics-export-port", "worker-port-list"):  # fmt: skip
        assert f"--{flag}" in words
    assert len(after("--worker-port-list", words).split(",")) >= 4 + 2 * 2


def test_a_head_that_others_were_told_the_port_of_answers_there_and_its_own_port_is_the_node_managers() -> None:
    words = command(**{**HEAD, "port": None, "head_port": 7777}).argv
    assert after("--port", words) == "7777"
    assert after("--node-manager-port", words) == "6379"


def test_ray_clients_port_is_said_where_its_server_would_be_started_and_nowhere_else() -> None:
    assert "--ray-client-server-port" in command(client=True, **HEAD).argv
    assert "--ray-client-server-port" not in command(client=False, **HEAD).argv
    assert "--ray-client-server-port" not in command(client=True, **OTHER).argv


def test_the_flag_that_says_what_it_gives_away_is_always_said() -> None:
    words = command(**HEAD, object_store_memory=200 * MIB).argv
    assert after("--num-cpus", words) == "4"
    assert after("--num-gpus", words) == "2"
    assert after("--object-store-memory", words) == str(200 * MIB)
    assert after("--temp-dir", words) == PRIVATE
    assert "--disable-usage-stats" in words
    assert "--include-dashboard=false" in words
    assert "--include-dashboard=true" in command(**HEAD, dashboard=True).argv


def test_the_path_of_the_longest_socket_is_what_the_kernel_allows_row_68() -> None:
    assert command(**HEAD).longest_tmpdir + len(SESSION) == 107


def test_the_token_is_in_no_word_and_the_environment_of_others_does_not_choose_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a secret\n")
    made = command(**{**HEAD, "allow_exposed": False}, api_key_file=str(tmp_path / "token"))
    assert not any("a secret" in word for word in made.argv)
    assert (made.env["RAY_AUTH_MODE"], made.env["RAY_AUTH_TOKEN"]) == ("token", "a secret")
    assert made.env["RAY_ADDRESS"] is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"allow_exposed": False}, "give the cluster a token"),
        ({"node_address": "127.0.0.1"}, "node_address = '127.0.0.1': Ray takes it for any address"),
        ({"head_address": "localhost"}, "head_address = 'localhost': Ray takes it for any address"),
        ({"node_rank": 2}, "node_rank = 2, but there are nodes = 2"),
        ({"model": "me/model"}, "serves nothing"),
        ({"engine_args": {"temp-dir": "/tmp/ray"}}, "temp-dir"),
        ({"engine_args": {"address": "auto"}}, "head_address and head_port"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "DEFAULT_TOKEN", Path("/nowhere"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigError, match=said):
        RayAdapter().check(config(**{**HEAD, **settings}))


@pytest.mark.parametrize("flag", sorted(OURS))
def test_no_flag_that_stoker_sets_is_set_twice(flag: str) -> None:
    with pytest.raises(ConfigError):
        RayAdapter().check(config(**HEAD, engine_args={flag: "x"}))


def test_further_flags_are_passed_on() -> None:
    assert after("--resources", command(**HEAD, engine_args={"resources": {"slot": 1}}).argv) == '{"slot":1}'


@pytest.mark.parametrize(
    ("environ", "token"),
    [({"RAY_AUTH_MODE": "token"}, True), ({"RAY_AUTH_MODE": "disabled"}, False), ({}, False)],
)
def test_a_token_of_rays_own_is_one_too(
    environ: dict[str, str], token: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "DEFAULT_TOKEN", tmp_path / "auth_token")
    assert has_token(config(), environ) is token
    (tmp_path / "auth_token").touch()
    assert has_token(config(), {}) is True
    assert has_token(config(), {"RAY_AUTH_MODE": "disabled"}) is False


# what the scheduler granted


def test_cpus_are_those_that_were_granted_and_no_more_than_there_are() -> None:
    here = len(os.sched_getaffinity(0))
    assert cpus(config(), {}) == here
    assert cpus(config(), {"SLURM_CPUS_ON_NODE": "1"}) == 1
    assert cpus(config(), {"SLURM_CPUS_ON_NODE": "4096"}) == here
    assert cpus(config(num_cpus=7), {"SLURM_CPUS_ON_NODE": "1"}) == 7


@pytest.mark.parametrize(
    ("environ", "found", "wanted"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 2, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 0, 2),  # without NVML's bindings they cannot be looked at
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,MIG-bb,MIG-cc"}, 0, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, 0),
        ({"SLURM_GPUS_ON_NODE": "4"}, 8, 4),
        ({"SLURM_GPUS_ON_NODE": "4"}, 0, 4),
        ({}, 8, 8),
        ({}, 0, None),
    ],
)
def test_gpus_are_those_that_were_granted(
    environ: Mapping[str, str], found: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "gpus", lambda environ: range(found))
    assert gpus_of(config(), environ) == wanted


def test_the_object_store_fits_into_memory_and_into_dev_shm() -> None:
    assert store_size(100_000 * MIB, 1_000_000 * MIB) == pytest.approx(30_000 * MIB)
    assert store_size(100_000 * MIB, 1000 * MIB) == 800 * MIB


def test_a_small_dev_shm_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB is what a container gets."""
    monkeypatch.setattr(backend, "free_shm", lambda: 64_000_000)
    words = command(**HEAD).argv
    assert after("--plasma-directory", words) == PRIVATE
    assert int(after("--object-store-memory", words)) >= 75 * MIB
    monkeypatch.setattr(backend, "free_shm", lambda: 64_000 * MIB)
    assert "--plasma-directory" not in command(**HEAD).argv


# what a cluster lacks

ONE, TWO = Node("10.0.0.1", 1, True, 4.0), Node("10.0.0.2", 2, True, 4.0)
DEAD = Node("10.0.0.3", 3, False)


@pytest.mark.parametrize(
    ("said", "wanted", "words"),
    [
        (Said((ONE, TWO)), 2, ""),
        (Said((ONE,)), 2, "1 of 2 nodes of the Ray cluster at h:1 are alive: 10.0.0.1 (4 GPUs)"),
        (Said((ONE, DEAD)), 2, "1 of 2 nodes of the Ray cluster at h:1 are alive: 10.0.0.1 (4 GPUs); lost: 10.0.0.3"),
        (Said(()), 1, "0 of 1 nodes of the Ray cluster at h:1 are alive: no node"),
        (Said(error="refused"), 1, "the Ray cluster at h:1 cannot be asked for its nodes: refused"),
    ],
)
def test_missing_nodes_are_counted_and_the_lost_ones_named(said: Said, wanted: int, words: str) -> None:
    assert missing_nodes(said, "h:1", wanted) == words


def test_missing_gpus_are_counted_with_where_the_others_are_row_70() -> None:
    assert missing_gpus(Said((ONE, TWO, DEAD)), "h:1", 8) == ""
    assert missing_gpus(Said((ONE, DEAD)), "h:1", 8) == (
        "8 GPUs are wanted, and the Ray cluster at h:1 has 4: 10.0.0.1 (4 GPUs)"
    )


def test_a_node_knows_whether_it_is_in() -> None:
    assert missing_node(Said((ONE, TWO)), "h:1", "10.0.0.2", 2) == ""
    assert "has not joined it" in missing_node(Said((ONE, TWO)), "h:1", "10.0.0.2", 3)
    assert "counts as dead there" in missing_node(Said((ONE, DEAD)), "h:1", "10.0.0.3", 3)


def test_the_answer_is_found_among_whatever_ray_prints() -> None:
    assert read_said(f'noise\n{MARK}{{"nodes": []}}\nmore') == Said()
    with pytest.raises(LaunchError):
        read_said("noise")


# vLLM on it


@pytest.fixture
def anyio_backend() -> str:
    """A backend knows nothing of event loops: one is enough."""
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ('[{"address": "10.0.0.1", "port": 1, "alive": true, "gpus": 4}]', "1 of 2 nodes"),
        ('[{"address": "10.0.0.1", "port": 1, "alive": true, "gpus": 1}, '
         '{"address": "10.0.0.2", "port": 2, "alive": true, "gpus": 1}]', "4 GPUs are wanted, .* has 2"),
    ],
)  # fmt: skip
async def test_vllm_is_not_started_on_a_cluster_that_lacks_what_it_needs_row_70(nodes: str, said: str) -> None:
    from backends.vllm_nodes import PLACEMENT_WAIT, refuse_small_cluster

    asked: list[Sequence[str]] = []

    async def ask(argv: Sequence[str], *, env: Mapping[str, str] = {}, timeout: float = 0.0) -> str:
        asked.append(argv)
        return f'{MARK}{{"nodes": {nodes}}}'

    settings = {"nodes": 2, "tensor_parallel": 4, "head_address": "10.0.0.1", "head_port": 6379}
    ray = ServerConfig("vllm", model="m", engine_args={"distributed-executor-backend": "ray"}, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        await refuse_small_cluster(ray, "/vllm/bin/python", {}, ask)
    assert asked[0][-4:] == ("0", "2", "4", str(PLACEMENT_WAIT))


def test_the_members_of_vllm_over_ray_are_the_clusters_nodes_and_then_vllm() -> None:
    args = {"distributed-executor-backend": "ray"}
    ray = ServerConfig(
        "vllm", model="m", nodes=3, tensor_parallel=3, engine_args=args, python=sys.executable, port=8000,
        env={"HF_HUB_OFFLINE": "1"}, allow_exposed=True,
    )  # fmt: skip
    found = members_of(ray, VllmAdapter())
    assert [(member.name, member.rank, member.config.backend) for member in found] == [
        ("ray-0", 0, "ray"), ("ray-1", 1, "ray"), ("ray-2", 2, "ray"), ("vllm", 0, "vllm"),
    ]  # fmt: skip
    assert [member.needs_next for member in found] == [True, True, False, False]
    for member in found:
        placed_config = placed(member, Place("127.0.0.2", "127.0.0.2", 7777), "x")
        load_adapter(member.config.backend).check(placed_config)  # type: ignore[attr-defined]
        assert placed_config.env == {"HF_HUB_OFFLINE": "1"}, "offline mode holds wherever the workers are (row 96)"


def test_a_cluster_without_a_token_is_refused_before_any_host_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "DEFAULT_TOKEN", Path("/nowhere"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    args = {"distributed-executor-backend": "ray"}
    ray = ServerConfig("vllm", model="m", nodes=2, tensor_parallel=2, engine_args=args, python=sys.executable)
    with pytest.raises(ConfigError, match="RAY_AUTH_TOKEN_PATH"):
        members_of(ray, VllmAdapter())


@pytest.mark.parametrize(("name", "needs_next"), [("sglang", True), ("vllm", False)])
def test_a_part_that_is_ready_only_with_the_head_does_not_keep_the_head_from_starting(
    name: str, needs_next: bool
) -> None:
    pair = ServerConfig(name, model="m", nodes=2, tensor_parallel=2)
    found = members_of(pair, load_adapter(name))
    assert [(member.rank, member.needs_next) for member in found] == [(1, needs_next), (0, False)]


@pytest.mark.anyio
async def test_a_check_says_who_can_reach_the_node_and_where_its_sockets_lie_row_68(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * max(1, 90 - len(str(tmp_path))))
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(backend, "DEFAULT_TOKEN", Path("/nowhere"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    ports, sockets = await RayAdapter().inspect(config(allow_exposed=True), no_ask)
    assert (ports.status, sockets.status) == ("warning", "warning")
    assert f"TMPDIR={long} is too long for them" in sockets.found
    monkeypatch.setenv("TMPDIR", "/tmp")
    ports, sockets = await RayAdapter().inspect(config(env={"RAY_AUTH_MODE": "token"}), no_ask)
    assert (ports.status, sockets.status) == ("ok", "ok")


async def no_ask(argv: Sequence[str], *, env: Mapping[str, str] = {}, timeout: float = 0.0) -> str:
    raise AssertionError("asked")
