"""GPUs as the driver tells of them, those that a server would see, and memory that comes back after its end."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.diagnosis import diagnose
from lifecycle.findings import memory_held, not_enough_gpus
from lifecycle.resources.gpus import TOLERANCE, Gpu, chosen, everything, gpus, mark, settled
from lifecycle.testing import run_virtual

FAKE = Path(__file__).with_name("fake_nvml")
GIB = 1024**3


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, with two GPUs, of which the second is in use."""
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    invalidate_caches()
    module = import_module("pynvml")
    module.MACHINE.devices = [
        module.Device("GPU-aaaa1111"),
        module.Device("GPU-bbbb2222", used=30 * GIB, compute=[module.ProcessInfo(os.getpid(), 29 * GIB)]),
    ]
    yield module
    assert module.MACHINE.begun == 0, "the library was not shut down"
    sys.modules.pop("pynvml", None)


def test_the_stand_in_has_the_functions_of_the_real_bindings() -> None:
    """Same names, same arguments."""
    real = import_module("pynvml") if "pynvml" not in sys.modules else sys.modules["pynvml"]
    assert real.__file__ is not None
    assert FAKE not in Path(real.__file__).parents
    spec = spec_from_file_location("stand_in", FAKE / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    fake = module_from_spec(spec)
    sys.modules["stand_in"] = fake  # dataclasses look their module up
    spec.loader.exec_module(fake)
    for name, function in inspect.getmembers(fake, inspect.isfunction):
        if name.startswith("nvml"):
            assert [*inspect.signature(function).parameters] == [*inspect.signature(getattr(real, name)).parameters]
    for name in vars(fake):
        if name.startswith("NVML_"):
            assert getattr(fake, name) == getattr(real, name)


def test_a_gpu_is_told_of_with_its_memory_and_who_holds_it(nvml: Any) -> None:
    first, second = everything()
    assert (first.index, first.uuid, first.total, first.free) == (0, "GPU-aaaa1111", 80 * GIB, 80 * GIB)
    assert (second.used, second.free) == (30 * GIB, 50 * GIB)
    (holder,) = second.processes
    assert (holder.pid, holder.used) == (os.getpid(), 29 * GIB)
    assert holder.name == Path("/proc/self/comm").read_text().strip()


def test_a_process_that_computes_and_draws_is_named_once(nvml: Any) -> None:
    device = nvml.MACHINE.devices[0]
    device.compute = device.graphics = [nvml.ProcessInfo(4_111_222, None)]
    (holder,) = everything()[0].processes
    assert (holder.name, holder.used) == ("program-4111222", None)


def test_without_a_driver_there_are_no_gpus(nvml: Any) -> None:
    nvml.MACHINE.driver = False
    assert everything() == ()
    assert mark() is None


def test_without_the_bindings_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus({}) == ()
    assert mark({}) is None


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses",
     "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMigMode"],
)  # fmt: skip
def test_what_a_driver_refuses_to_tell_is_left_out_and_the_rest_is_told(nvml: Any, function: str) -> None:
    nvml.MACHINE.devices[0].errors = {function: nvml.NVML_ERROR_NOT_SUPPORTED}
    first, second = everything()
    assert first.index == 0
    assert second.uuid == "GPU-bbbb2222"


def test_a_gpu_that_is_lost_hides_no_other(nvml: Any) -> None:
    nvml.MACHINE.devices[0].errors = {"nvmlDeviceGetHandleByIndex": nvml.NVML_ERROR_NO_PERMISSION}
    assert [gpu.index for gpu in everything()] == [1]


# What CUDA_VISIBLE_DEVICES leaves

SPLIT = Gpu(
    2, "GPU-cccc3333", "H100", 80, 0, 80,
    instances=(
        Gpu(2, "MIG-1111-aaaa", "H100 MIG", 40, 0, 40, alias="MIG-GPU-cccc3333/1/0"),
        Gpu(2, "MIG-2222-bbbb", "H100 MIG", 40, 0, 40, alias="MIG-GPU-cccc3333/2/0"),
    ),
)  # fmt: skip
FOUND = (Gpu(0, "GPU-aaaa1111", "H100", 80, 0, 80), Gpu(1, "GPU-aaaa2222", "H100", 80, 0, 80), SPLIT)


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (None, ["GPU-aaaa1111", "GPU-aaaa2222", "MIG-1111-aaaa"]),
        ("", []),
        ("-1", []),
        ("1", ["GPU-aaaa2222"]),
        ("1,0", ["GPU-aaaa2222", "GPU-aaaa1111"]),
        (" 0 , 1 ", ["GPU-aaaa1111", "GPU-aaaa2222"]),
        ("0,7,1", ["GPU-aaaa1111"]),
        ("0,-1,1", ["GPU-aaaa1111"]),
        ("0,0", ["GPU-aaaa1111"]),
        ("2", ["MIG-1111-aaaa"]),
        ("GPU-aaaa2222", ["GPU-aaaa2222"]),
        ("GPU-aaaa1", ["GPU-aaaa1111"]),
        ("GPU-aaaa", []),
        ("GPU-cccc", ["MIG-1111-aaaa"]),
        ("MIG-2222", ["MIG-2222-bbbb"]),
        ("MIG-2222-bbbb,GPU-aaaa1111", ["MIG-2222-bbbb", "GPU-aaaa1111"]),
        ("MIG-GPU-cccc3333/2/0", ["MIG-2222-bbbb"]),
        ("MIG-GPU-cccc3333/9/0", []),
        ("nonsense", []),
        ("²", []),
    ],
)
def test_a_server_sees_the_gpus_that_its_variable_names(names: str | None, left: list[str]) -> None:
    assert [gpu.uuid for gpu in chosen(names, FOUND)] == left


@given(st.none() | st.text() | st.lists(st.sampled_from(["0", "1", "2", "GPU-a", "MIG-1", "9"])).map(",".join))
def test_no_variable_makes_an_error_or_a_gpu_that_is_not_there(names: str | None) -> None:
    usable = {gpu.uuid for one in FOUND for gpu in (one, *one.instances)}
    left = [gpu.uuid for gpu in chosen(names, FOUND)]
    assert len(left) == len(set(left))
    assert set(left) <= usable


def test_a_gpu_that_is_split_is_told_of_with_its_instances(nvml: Any) -> None:
    small = nvml.Device("MIG-1234", name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", total=40 * GIB, used=GIB, ids=(1, 0))
    nvml.MACHINE.devices[0].mig = [None, small]
    assert [(gpu.uuid, gpu.alias, gpu.used) for gpu in everything()[0].instances] == [
        ("MIG-1234", "MIG-GPU-aaaa1111/1/0", GIB)
    ]
    assert [gpu.uuid for gpu in gpus({"CUDA_VISIBLE_DEVICES": "MIG-1234"})] == ["MIG-1234"]


def test_the_servers_variable_counts_and_not_our_own(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [gpu.index for gpu in gpus()] == [0]
    assert [gpu.index for gpu in gpus({"CUDA_VISIBLE_DEVICES": "1"})] == [1]
    assert [gpu.index for gpu in gpus({"CUDA_VISIBLE_DEVICES": None})] == [0, 1]


# Memory that comes back


class Reading:
    """Bytes beyond the mark, by the virtual time since the first look."""

    def __init__(self, *steps: tuple[float, tuple[int, ...]]) -> None:
        self._steps = steps
        self._began: float | None = None

    async def __call__(self) -> tuple[int, ...]:
        if self._began is None:
            self._began = anyio.current_time()
        passed = anyio.current_time() - self._began
        return [values for at, values in self._steps if at <= passed][-1]


def wait(reading: Reading, limit: float, backend: str) -> tuple[bool, float]:
    """Whether the memory is back, and after how many virtual seconds that was known."""

    async def body() -> tuple[bool, float]:
        began = anyio.current_time()
        found = await settled(reading, limit)
        return found, anyio.current_time() - began

    return run_virtual(body, backend=backend)


BACK = [
    pytest.param(Reading((0, (0, 0))), 0.0, id="it was never in use"),
    pytest.param(Reading((0, (TOLERANCE, -5 * GIB))), 0.0, id="less is in use than before"),
    pytest.param(Reading((0, (70 * GIB, 70 * GIB)), (2, (0, 0))), 2.0, id="the driver frees it two seconds later"),
    pytest.param(Reading((0, (9 * GIB,)), (0.9, (8 * GIB,)), (1.8, (GIB,)), (2.7, (0,))), 2.7, id="little by little"),
    pytest.param(Reading((0, (0, 9 * GIB)), (0.5, (0, 0))), 0.5, id="one GPU later than the other"),
]
GONE = [
    pytest.param(Reading((0, (9 * GIB,)), (0.5, (5 * GIB,))), 1.5, id="another process has taken some of it"),
    pytest.param(Reading((0, (5 * GIB,))), 3.0, id="another process has taken all of it"),
    pytest.param(Reading((0, (5 * GIB,)), (1, (6 * GIB,)), (2, (7 * GIB,))), 3.0, id="another process takes more"),
]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("reading", "seconds"), BACK)
def test_memory_is_back_as_soon_as_it_is(reading: Reading, seconds: float, backend: str) -> None:
    found, after = wait(reading, 60, backend)
    assert found
    assert seconds <= after < seconds + 0.2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("reading", "seconds"), GONE)
def test_memory_that_will_not_come_back_is_not_waited_for(reading: Reading, seconds: float, backend: str) -> None:
    found, after = wait(reading, 60, backend)
    assert not found
    assert seconds <= after < seconds + 0.5


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_limit_holds_while_memory_is_still_falling(backend: str) -> None:
    falling = Reading(*((n / 2, ((100 - n) * GIB,)) for n in range(100)))
    assert wait(falling, 7.0, backend) == (False, 7.0)


@pytest.mark.anyio
async def test_the_mark_is_what_was_in_use_before_the_start(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = mark()
    assert memory is not None
    assert await memory.back(5.0)  # 30 GiB of somebody else's were in use then, too
    nvml.MACHINE.devices[0].used = 40 * GIB
    async with anyio.create_task_group() as group:
        group.start_soon(_free, nvml.MACHINE.devices[0])
        assert await memory.back(5.0)


async def _free(device: Any) -> None:
    await anyio.sleep(0.2)
    device.used = 0


@pytest.mark.anyio
async def test_a_gpu_of_somebody_else_is_not_waited_for(nvml: Any) -> None:
    memory = mark({"CUDA_VISIBLE_DEVICES": "0"})
    nvml.MACHINE.devices[1].used = 70 * GIB
    assert memory is not None
    assert await memory.back(0.0) or await memory.back(1.0)


def test_who_holds_the_memory_is_named_but_neither_ours_nor_those_in_nobody_s_way(nvml: Any) -> None:
    nvml.MACHINE.devices[1].compute = [
        nvml.ProcessInfo(4_000_001, 2 * GIB), nvml.ProcessInfo(4_000_002, 20 * GIB), nvml.ProcessInfo(4_000_003, None),
        nvml.ProcessInfo(4_000_004, 10 * 1024**2), nvml.ProcessInfo(os.getpid(), GIB),
    ]  # fmt: skip
    memory = mark({})
    assert memory is not None
    assert memory.holders(frozenset({os.getpid()})) == (
        "program-4000002 (pid 4000002) holds 20.0 GiB of GPU 1",
        "program-4000001 (pid 4000001) holds 2.0 GiB of GPU 1",
        "program-4000003 (pid 4000003) holds an unknown part of GPU 1",
    )


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory.",
        "ValueError: Free memory on device cuda:0 (9/80 GiB) on startup is less than desired GPU memory utilization",
    ],
)
def test_memory_that_was_not_to_be_had_is_put_down_to_those_who_hold_it(line: str) -> None:
    holders = ["VLLM::EngineCore (pid 7) holds 60 GiB of GPU 0"]
    found = memory_held(diagnose("exited", "it ended", lines=[line]), holders)
    assert found.cause == "memory-held"
    assert "VLLM::EngineCore (pid 7)" in found.text()
    assert found.evidence == line


def test_nobody_is_blamed_for_another_cause_or_if_nobody_holds_any() -> None:
    full = diagnose("exited", "s", lines=["OSError: [Errno 28] No space left on device"])
    assert memory_held(full, ["somebody"]) == full
    out = diagnose("exited", "s", lines=["CUDA out of memory"])
    assert memory_held(out, []) == out


@given(st.integers(1, 64), st.integers(0, 64))
def test_gpus_are_enough_or_it_is_said_how_many_there_are(needed: int, found: int) -> None:
    said = not_enough_gpus(needed, found)
    assert (said is None) == (found >= needed)
    assert said is None or str(needed) in said
