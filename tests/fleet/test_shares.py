"""GPUs are shared out by the names that they have."""

from __future__ import annotations

import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lifecycle.fleet.shares as shares_module
from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.fleet import Fleet
from lifecycle.fleet.settings import FleetConfig
from lifecycle.fleet.shares import environments, nodes, shares, visible
from lifecycle.resources.gpus import Gpu
from lifecycle.testing import SimulatedAdapter

FAKE = Path(__file__).parents[1] / "fake_nvml"
ENGINE = SimulatedAdapter(capabilities=Capabilities(settings=frozenset({"tensor_parallel", "pipeline_parallel"})))
NO_ENGINE = SimulatedAdapter()
NAMES = st.one_of(
    st.integers(0, 15).map(str),
    st.uuids().map(lambda uuid: f"GPU-{uuid}"),
    st.uuids().map(lambda uuid: f"MIG-{uuid}"),
    st.tuples(st.uuids(), st.integers(0, 6)).map(lambda pair: f"MIG-GPU-{pair[0]}/{pair[1]}/0"),
)


def gpu(index: int, *instances: str) -> Gpu:
    split = tuple(Gpu(index, name, "H200", 1, 0, 1) for name in instances)
    return Gpu(index, f"GPU-{index}", "H200", 1, 0, 1, instances=split)


@pytest.mark.fault(41)
@given(st.lists(NAMES, max_size=16, unique=True), st.integers(1, 5), st.integers(1, 4))
def test_every_share_has_its_own_gpus_by_the_names_that_were_given(names: list[str], replicas: int, each: int) -> None:
    assert list(visible({"CUDA_VISIBLE_DEVICES": ",".join(names)}, ())) == names
    if replicas * each > len(names):
        with pytest.raises(ConfigError, match=f"{replicas * each - len(names)} missing"):
            shares(names, replicas, each)
        return
    found = [share.split(",") for share in shares(names, replicas, each)]
    assert [len(share) for share in found] == [each] * replicas
    assert [name for share in found for name in share] == names[: replicas * each]


@pytest.mark.parametrize(
    ("names", "left"),
    [("", ()), ("-1", ()), ("2, 0", ("2", "0")), ("0,-1,1", ("0",)), ("NoDevFiles", ()), ("0,1,0", ("0", "1"))],
)
def test_the_list_ends_at_the_first_name_that_is_none(names: str, left: tuple[str, ...]) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": names}, [gpu(0), gpu(1), gpu(2)]) == left


def test_without_the_variable_the_gpus_of_the_machine_count_and_of_one_that_is_split_its_instances() -> None:
    assert visible({}, [gpu(0), gpu(1, "MIG-a", "MIG-b")]) == ("0", "MIG-a", "MIG-b")


def test_too_few_gpus_are_an_error_that_says_how_many_and_what_fits() -> None:
    with pytest.raises(ConfigError, match=r"3 with 2 GPUs each need 6, and 5 .* 1 missing; lower replicas to 2"):
        shares(list("01234"), 3, 2)
    with pytest.raises(ConfigError, match="lower tensor_parallel"):
        shares(["0"], 2, 2)


def asked(
    fleet: FleetConfig, variable: str | None, adapter: SimulatedAdapter = ENGINE, **more: int
) -> list[str | None]:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    config = ServerConfig("simulated", **more)  # type: ignore[arg-type]
    return [each.get("CUDA_VISIBLE_DEVICES") for each in environments(fleet, config, adapter, environ)]


def test_a_replica_gets_as_many_as_its_model_is_spread_over() -> None:
    assert asked(FleetConfig(2), "4,5,6,7", tensor_parallel=2) == ["4,5", "6,7"]
    assert asked(FleetConfig(2), "0,1,2,3,4,5,6,7,8", tensor_parallel=2, pipeline_parallel=2) == ["0,1,2,3", "4,5,6,7"]
    assert asked(FleetConfig(2, replica_gpus=3), "0,1,2,3,4,5") == ["0,1,2", "3,4,5"]


def test_one_server_a_backend_without_gpus_and_hidden_gpus_are_left_as_they_are() -> None:
    assert asked(FleetConfig(1), "0,1") == [None]
    assert asked(FleetConfig(2), "0,1", NO_ENGINE) == [None, None]
    assert asked(FleetConfig(2), "") == [None, None]
    assert asked(FleetConfig(2, replica_gpus=1), "0,1", NO_ENGINE) == ["0", "1"]


@pytest.mark.parametrize(
    ("variable", "each", "said"),
    [
        ("", 1, "CUDA_VISIBLE_DEVICES is empty, which hides them all.*: 2 missing; leave replica_gpus out"),
        ("-1", 1, "CUDA_VISIBLE_DEVICES = '-1' counts up to its first wrong name, and '-1' is no GPU"),
        ("0,0", 1, "CUDA_VISIBLE_DEVICES = '0,0' .*, and '0' is there twice.*: 1 missing; lower replicas to 1"),
        ("0,x,1", 1, "'x' is no GPU"),
        ("0", 2, r"\(0 by CUDA_VISIBLE_DEVICES\): 3 missing; lower replica_gpus, or let more be seen"),
    ],
)
def test_gpus_that_were_asked_for_by_number_must_be_there(variable: str, each: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as found:
        asked(FleetConfig(2, replica_gpus=each), variable)
    assert "tensor_parallel" not in str(found.value)


def test_a_machine_without_gpus_sets_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(shares_module.nodes, "__defaults__", (tmp_path,))
    assert asked(FleetConfig(2), None) == [None, None]


def test_gpus_are_found_by_the_driver_or_by_its_device_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("nvidia2", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert nodes(tmp_path) == ("0", "1")
    monkeypatch.setattr(shares_module.nodes, "__defaults__", (tmp_path,))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert asked(FleetConfig(2), None) == ["0", "1"]
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.syspath_prepend(FAKE)
    invalidate_caches()
    module = __import__("pynvml")
    module.MACHINE.devices = [module.Device(f"GPU-{letter}") for letter in "abcd"]
    assert asked(FleetConfig(2), None, tensor_parallel=2) == ["0,1", "2,3"]
    sys.modules.pop("pynvml", None)


def test_the_variables_of_the_configuration_come_before_those_of_the_environment() -> None:
    config = ServerConfig("simulated", env={"CUDA_VISIBLE_DEVICES": "6,7"})
    found = environments(FleetConfig(2), config, ENGINE, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["6", "7"]


def test_each_replica_is_configured_with_its_name_and_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,MIG-c")
    fleet = Fleet(ServerConfig("simulated", name="big", env={"A": "1"}), replicas=3, adapter=ENGINE)
    configs = [slot.replica.config for slot in fleet.slots]  # type: ignore[attr-defined]
    assert [config.label for config in configs] == ["big-0", "big-1", "big-2"]
    assert [config.env["CUDA_VISIBLE_DEVICES"] for config in configs] == ["GPU-a", "GPU-b", "MIG-c"]
    assert all(config.env["A"] == "1" for config in configs)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"replicas": 0}, "replicas = 0 must be at least 1"),
        ({"replicas": 2, "min_healthy": 3}, "min_healthy = 3 is more than replicas = 2"),
        ({"replicas": 2, "cap": 0}, "replica_concurrency = 0 must be at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Fleet(ServerConfig("simulated"), adapter=NO_ENGINE, **wrong)  # type: ignore[arg-type]


def test_one_port_and_one_url_are_refused_for_several_replicas() -> None:
    with pytest.raises(ConfigError, match="port = 8000 can be one server's only"):
        Fleet(ServerConfig("simulated", port=8000), replicas=2, adapter=NO_ENGINE)
    endpoint = SimulatedAdapter(capabilities=Capabilities(local=False))
    with pytest.raises(ConfigError, match="starts no server"):
        Fleet(ServerConfig("simulated", base_url="http://127.0.0.1:1"), replicas=2, adapter=endpoint)
