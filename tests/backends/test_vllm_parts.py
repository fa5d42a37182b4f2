"""vLLM on several hosts: the flags and variables of each part, checked against real option tables."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import psutil
import pytest

from backends import vllm_cache
from backends.nodes import interface_of
from backends.vllm import VllmAdapter, refuse_unplaced
from backends.vllm_flags import serve_words
from backends.vllm_nodes import TRAVEL_LIST
from lifecycle.adapter import Launch, Prepared, capabilities_of
from lifecycle.config import load_config
from lifecycle.errors import ConfigError
from tests.backends.test_vllm_command import VERSIONS, after, argv, config, engine

PAIR: dict[str, Any] = {"nodes": 2, "node_address": "127.0.0.1", "head_address": "10.0.0.1", "head_port": 29501}
TENSOR: dict[str, Any] = {**PAIR, "tensor_parallel": 2}
COPIES: dict[str, Any] = {**PAIR, "data_parallel": 4}
RAY: dict[str, Any] = {**TENSOR, "engine_args": {"distributed-executor-backend": "ray"}}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RAY_ADDRESS", "VLLM_HOST_IP", TRAVEL_LIST):
        monkeypatch.delenv(name, raising=False)


def env(**settings: Any) -> Mapping[str, str | None]:
    return VllmAdapter().command(Launch(config(**settings), 8001, (), 1, Prepared(None, engine()))).env


def loopback() -> str:
    found = psutil.net_if_addrs()
    return next(name for name in found for entry in found[name] if entry.address == "127.0.0.1")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("shape", [TENSOR, COPIES, RAY], ids=["tensor", "copies", "ray"])
def test_every_supported_version_takes_the_flags_of_every_part(version: str, rank: int, shape: Any) -> None:
    engine(version).check(serve_words(config(**shape, node_rank=rank), engine(version), 8001))


def test_the_head_and_a_headless_part_differ_in_rank_and_head_only() -> None:
    head, part = argv(**TENSOR), argv(**TENSOR, node_rank=1)
    meeting = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1", "--master-port", "29501"]
    at = head.index("--nnodes")
    assert head[at : at + 8] == meeting
    assert "--headless" not in head
    assert part == [*head[: at + 3], "1", *head[at + 4 : at + 8], "--headless", *head[at + 8 :]]


def test_copies_are_shared_out_among_the_hosts() -> None:
    head, part = argv(**COPIES), argv(**COPIES, node_rank=1)
    for words in (head, part):
        assert after("--data-parallel-size", words) == "4"
        assert after("--data-parallel-size-local", words) == "2"
        assert after("--data-parallel-address", words) == "10.0.0.1"
        assert after("--data-parallel-rpc-port", words) == "29501"
        assert "--nnodes" not in words
    assert "--data-parallel-start-rank" not in head, "the head would take requests for its own copies only"
    assert after("--data-parallel-start-rank", part) == "2"
    assert "--headless" in part


def test_one_host_has_no_flag_of_several() -> None:
    assert not {"--nnodes", "--headless", "--master-addr", "--data-parallel-size-local"} & set(argv(data_parallel=2))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**PAIR, "tensor_parallel": 3}, "nodes = 2 must divide tensor_parallel × pipeline_parallel = 3"),
        ({**PAIR, "data_parallel": 3}, "nodes = 2 must divide data_parallel = 3"),
        ({**TENSOR, "node_rank": 2}, "node_rank = 2, but there are nodes = 2"),
        ({"node_rank": 1}, "node_rank = 1, but there are nodes = 1"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_before_anything_starts(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        VllmAdapter().check(config(**settings))


def test_context_parallel_ranks_count_too() -> None:
    VllmAdapter().check(config(**PAIR, engine_args={"prefill_context_parallel_size": 2}))


@pytest.mark.parametrize("missing", ["node_address", "head_address", "head_port"])
def test_where_the_parts_meet_must_be_known_before_a_start(missing: str) -> None:
    settings = {**TENSOR, missing: type(TENSOR[missing])()}
    with pytest.raises(ConfigError, match=f"nodes = 2, but {missing} is not set"):
        refuse_unplaced(config(**settings), {})


def test_an_address_of_another_host_is_refused_with_those_that_this_one_has() -> None:
    with pytest.raises(ConfigError, match=r"node_address = '192\.0\.2\.1' is no address of this host.*127\.0\.0\.1"):
        refuse_unplaced(config(**{**TENSOR, "node_address": "192.0.2.1"}), {})


@pytest.mark.parametrize(
    ("flags", "setting", "value"),
    [
        ({"nnodes": "2"}, "nodes", 2), ({"n": 2}, "nodes", 2), ({"node_rank": 0}, "node_rank", 0),
        ({"master-addr": "10.0.0.1"}, "head_address", "10.0.0.1"), ({"--master-port": "29501"}, "head_port", 29501),
    ],
)  # fmt: skip
def test_vllms_own_flags_for_nodes_are_taken_for_the_settings(flags: Any, setting: str, value: Any) -> None:
    loaded, _ = load_config("vllm", model="me/model", engine_args=flags, tensor_parallel=2)
    assert getattr(loaded, setting) == value
    assert loaded.engine_args == {}


@pytest.mark.parametrize("flag", ["headless", "dpl", "data-parallel-start-rank"])
def test_flags_that_follow_from_the_rank_are_refused_with_what_they_follow_from(flag: str) -> None:
    with pytest.raises(ConfigError, match="node"):
        load_config("vllm", model="me/model", engine_args={flag: True})


def test_a_headless_part_is_not_asked_and_not_waited_for() -> None:
    can = capabilities_of(VllmAdapter(), config(**TENSOR, node_rank=1))
    assert (can.probed, can.generates, can.reports_model, can.load_path, can.sleep) == (False, False, False, None, None)
    assert can.longest_grace < 5
    assert capabilities_of(VllmAdapter(), config(**TENSOR)).probed


def test_head_and_parts_name_the_same_cache_and_another_number_of_nodes_another() -> None:
    def name(**settings: Any) -> str:
        words = serve_words(config(**settings), engine())
        return vllm_cache.key(words, {}, version="1", torch="2", gpus=(), model="m", model_hash="")

    assert name(**TENSOR) == name(**TENSOR, node_rank=1) == name(**{**TENSOR, "head_port": 1, "head_address": "::1"})
    assert name(**TENSOR) != name(tensor_parallel=2)


# fault row 69: the engine and Ray must mean the same host by the same address


def test_each_part_is_told_its_own_address_and_the_interface_that_has_it() -> None:
    said = env(**TENSOR, node_rank=1)
    assert said["VLLM_HOST_IP"] == "127.0.0.1"
    assert said["GLOO_SOCKET_IFNAME"] == said["NCCL_SOCKET_IFNAME"] == loopback()


def test_an_interface_that_the_user_has_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    said = env(**TENSOR, env={"GLOO_SOCKET_IFNAME": "eth7"})
    assert said["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "NCCL_SOCKET_IFNAME" not in said


def test_an_interface_is_found_by_its_address_in_either_family() -> None:
    assert interface_of("127.0.0.1") == loopback()
    assert interface_of("192.0.2.1") is None
    six = [entry.address for entry in psutil.net_if_addrs()[loopback()] if entry.family is socket.AF_INET6]
    assert all(interface_of(address.partition("%")[0]) == loopback() for address in six)


# over Ray


@pytest.mark.fault(69)
def test_over_ray_the_head_names_the_cluster_and_the_address_that_ray_knows_it_by_row_69() -> None:
    said = env(**RAY)
    assert said["RAY_ADDRESS"] == "10.0.0.1:29501"
    assert said["VLLM_HOST_IP"] == "127.0.0.1"
    assert "NCCL_SOCKET_IFNAME" not in said, "it would travel to hosts where interfaces have other names"
    assert not {"--nnodes", "--headless"} & set(argv(**RAY))


@pytest.mark.parametrize("found", [None, "", "auto", "local"])
def test_over_ray_a_cluster_that_is_not_named_is_refused_row_66(found: str | None) -> None:
    environ = {} if found is None else {"RAY_ADDRESS": found}
    settings = {**RAY, "head_address": "", "head_port": None}
    with pytest.raises(ConfigError, match="attach itself to whatever cluster"):
        refuse_unplaced(config(**settings), environ)
    refuse_unplaced(config(**settings), {"RAY_ADDRESS": "10.0.0.9:6379"})


@pytest.mark.fault(96)
def test_offline_mode_reaches_the_workers_on_every_host_row_96(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM itself copies what begins with HF_."""
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    said = env(**RAY, env={"HF_HUB_OFFLINE": "1", "MY_PROXY": "x"})
    assert said["HF_HUB_OFFLINE"] == "1"
    copied = str(said[TRAVEL_LIST]).split(",")
    assert {"TRANSFORMERS_OFFLINE", "MY_PROXY", "HF_HUB_OFFLINE"} <= set(copied)


def test_over_ray_the_other_hosts_run_no_vllm_themselves() -> None:
    """Their part in a group is a node of the cluster, so the configuration as such is right."""
    VllmAdapter().check(config(**RAY, node_rank=1))
    with pytest.raises(ConfigError, match="over Ray only the head runs vLLM"):
        refuse_unplaced(config(**RAY, node_rank=1), {})


def test_what_the_user_has_copied_stays_copied() -> None:
    assert str(env(**RAY, env={TRAVEL_LIST: "MINE,"})[TRAVEL_LIST]).split(",")[0] == "MINE"
