"""What can be said about replicas on a cluster, what is refused, what travels, and what a shortage is called."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.adapter import load_adapter
from lifecycle.config import ServerConfig, check
from lifecycle.errors import ConfigError
from lifecycle.fleet.settings import FleetConfig
from lifecycle.ray.missing import Stock, missing
from lifecycle.ray.settings import (
    KEY_VARIABLE,
    RayConfig,
    address_of,
    check_ray,
    keyed,
    needs_of,
    on_node,
    travelling,
)
from lifecycle.secrets import api_key

THERE = RayConfig("10.0.0.1:6379")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auto", "somebody else's cluster"),
        ("ray://10.0.0.1:10001", "Ray Client"),
        ("10.0.0.1", "not HOST:PORT"),
        (":6379", "not HOST:PORT"),
        ("local", "not HOST:PORT"),
        ("10.0.0.1:0", "not HOST:PORT"),
        ("10.0.0.1:70000", "not HOST:PORT"),
        ("10.0.0.1:²", "not HOST:PORT"),
    ],
)
def test_an_address_that_is_not_one_clusters_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        address_of(text)


def test_addresses_are_hosts_and_ports() -> None:
    assert address_of("head:6379") == ("head", 6379)
    assert address_of("[::1]:6379") == ("::1", 6379)


@pytest.mark.parametrize(
    ("ray", "config", "said"),
    [
        ({"placement_timeout": 0.0}, {}, "placement_timeout"),
        ({"ray_cpus": -1.0}, {}, "ray_cpus"),
        ({"ray_resources": {"GPU": 1.0}}, {}, "replica_gpus"),
        ({"ray_resources": {"H100": 0.0}}, {}, "more than 0"),
        ({}, {"port": 8000}, "port = 8000"),
        ({}, {"host": "0.0.0.0", "allow_exposed": True}, "binds the address of its own node"),
        ({}, {"nodes": 2}, "nodes = 2"),
        ({}, {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "replica_gpus"),
        ({}, {"backend": "endpoint", "base_url": "http://10.0.0.7:8000"}, "starts no server"),
    ],
)
def test_what_cannot_be_on_a_cluster_is_refused(ray: dict[str, Any], config: dict[str, Any], said: str) -> None:
    chosen = ServerConfig(**{"backend": "echo", **config})
    with pytest.raises(ConfigError, match=said):
        check_ray(replace(THERE, **ray), chosen, load_adapter(chosen.backend))


def test_a_replica_needs_the_gpus_of_all_its_parts() -> None:
    config = ServerConfig("vllm", model="m", tensor_parallel=4, pipeline_parallel=2)
    assert needs_of(THERE, FleetConfig(2), config, load_adapter("vllm")) == {"CPU": 1.0, "GPU": 8.0}
    echo = load_adapter("echo")
    more = replace(THERE, ray_cpus=0.0, ray_resources={"H100": 1.0})
    assert needs_of(more, FleetConfig(2), ServerConfig("echo"), echo) == {"H100": 1.0}
    with pytest.raises(ConfigError, match="would hold nothing"):
        needs_of(replace(THERE, ray_cpus=0.0), FleetConfig(2), ServerConfig("echo"), echo)


def test_replicas_have_a_key_of_their_own_unless_they_are_meant_to_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    config = keyed(ServerConfig("echo"))
    key = api_key(config)
    assert key is not None
    assert len(key) > 30
    assert api_key(keyed(ServerConfig("echo"))) == key
    assert keyed(ServerConfig("echo", allow_exposed=True)) == ServerConfig("echo", allow_exposed=True)
    assert key not in str(on_node(config, key))
    check(replace(on_node(config, key), host="10.0.0.3"), load_adapter("echo"))


def test_a_key_from_a_file_travels_as_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("the key\n")
    config = on_node(ServerConfig("echo", api_key_file=str(path)), "the key")
    assert (config.api_key_env, config.api_key_file) == (KEY_VARIABLE, "")


def test_what_concerns_the_hub_and_the_engine_travels_and_what_concerns_this_host_does_not() -> None:
    here = {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "t", "VLLM_USE_V1": "1", "VLLM_HOST_IP": "10.0.0.1", "PATH": "/bin"}
    assert travelling(here) == {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "t", "VLLM_USE_V1": "1"}


STOCK = Stock({"GPU": 4, "CPU": 8}, {"GPU": 1, "CPU": 6}, ({"GPU": 2, "CPU": 4}, {"GPU": 2, "CPU": 4}), "PENDING")


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"GPU": 4.0, "CPU": 1.0}, "4 GPU and 1 CPU are wanted on one node; no node has so many: 4 GPU are in the "
         "cluster, 1 of them free, and at most 2 on one node (2 nodes alive); the placement group is PENDING"),
        ({"GPU": 2.0}, "2 GPU are wanted on one node; others hold it: 4 GPU are in the cluster, 1 of them free (2 "),
        ({"H100": 1.0}, "1 H100 is wanted on one node; no node has so many: 0 H100 are in the cluster, 0 of them free"),
        ({"GPU": 1.0}, "1 GPU is wanted on one node; no node has all of it free: 4 GPU are in the cluster, 1 of them "),
    ],
)  # fmt: skip
def test_a_shortage_is_told_with_what_is_wanted_and_what_there_is(needs: dict[str, float], said: str) -> None:
    assert missing(needs, STOCK).startswith(said)


amounts = st.dictionaries(st.sampled_from(["CPU", "GPU", "H100"]), st.floats(0, 64), max_size=3)


@given(needs=amounts.filter(bool), nodes=st.lists(amounts, max_size=4), free=amounts)
def test_a_shortage_names_each_thing_that_is_wanted(
    needs: dict[str, float], nodes: list[dict[str, float]], free: dict[str, float]
) -> None:
    total = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU", "H100")}
    said = missing(needs, Stock(total, free, tuple(nodes)))
    assert all(f"{amount:g} {name}" in said for name, amount in needs.items())


def test_ray_is_not_imported_before_it_is_used() -> None:
    code = "import sys, lifecycle.cli.generate, lifecycle.ray.replica; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
