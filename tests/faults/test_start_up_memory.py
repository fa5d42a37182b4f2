"""A start depends on memory that others hold, or that a server which has just ended holds still."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from lifecycle.config import load_config
from lifecycle.diagnosis import Verdict
from lifecycle.journal import Kind, Record
from lifecycle.resources import cgroup
from lifecycle.resources.local import LocalHost
from lifecycle.resources.log import tail
from lifecycle.server import Server
from tests.fake import fake_command
from tests.served import GUARD, HELLO, QUICK, fake, given_up, healthy, path_of, starts, tell
from tests.test_gpus import FAKE, GIB

pytestmark = pytest.mark.anyio
DIES: dict[str, Any] = {"exit_before_bind": True}
HELD = "ValueError: Free memory on device cuda:0 (9.1/79.3 GiB) on startup is less than desired GPU memory utilization"
TRIGGER = "CUDA out of memory"


class Clinging:
    """A GPU whose driver gives the memory of a process back only some time after its end. `held` has what was in use
    whenever a server was launched."""

    def __init__(self, device: Any, later: float) -> None:
        self._later = later
        self._gone: dict[int, float] = {}
        self.pids: list[int] = []
        self.held: list[int] = []
        device.__class__ = type("Device", (type(device),), {"used": property(lambda _: self.used())})

    def used(self) -> int:
        for pid in self.pids:
            if not psutil.pid_exists(pid):
                self._gone.setdefault(pid, time.monotonic())
        now = time.monotonic()
        return 60 * GIB * sum(now - self._gone.get(pid, now) < self._later for pid in self.pids)

    def listen(self, record: Record) -> None:
        if record.event == "Launched":
            self.held.append(self.used())
            self.pids.append(int(str(record.pid)))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    importlib.invalidate_caches()
    module = importlib.import_module("pynvml")
    module.MACHINE.devices = [module.Device("GPU-aaaa1111")]
    yield module
    sys.modules.pop("pynvml", None)


def made(folder: Path, flags: dict[str, Any], *, host: LocalHost | None = None, listener: Any = None,
         attempts: tuple[dict[str, Any], ...] = (), **settings: Any) -> Server:  # fmt: skip
    values = {"state_dir": str(folder / "state"), **QUICK, "model": "fake", **settings}
    config, adapter = load_config("custom", command=fake_command(attempts=attempts, **flags), **values)
    return Server(config, adapter=adapter, host=host or LocalHost(folder / "state"), listener=listener)


@pytest.mark.fault(13, 40)
async def test_the_next_start_waits_until_the_memory_of_the_last_one_is_back(tmp_path: Path, nvml: Any) -> None:
    gpu = Clinging(nvml.MACHINE.devices[0], later=1.0)
    server = made(tmp_path, {}, attempts=(DIES, {}), listener=gpu.listen)
    async with server:
        await healthy(server)
        assert gpu.held == [0, 0]
        assert gpu.used() == 60 * GIB
    assert len(starts(server)) == 2


@pytest.mark.fault(13)
async def test_memory_that_does_not_come_back_is_waited_for_within_its_limit(tmp_path: Path, nvml: Any) -> None:
    gpu = Clinging(nvml.MACHINE.devices[0], later=3600.0)
    server = made(tmp_path, {}, attempts=(DIES, {}), listener=gpu.listen, memory_timeout=0.3)
    async with server:
        await healthy(server)
        assert gpu.held == [0, 60 * GIB]
    notes = [str(record.detail.get("phase")) for record in server.journal.records if record.kind is Kind.PHASE]
    assert any("memory" in note for note in notes)


@pytest.mark.fault(39)
async def test_memory_that_is_held_is_tried_again_once_and_not_five_times(tmp_path: Path) -> None:
    server = fake(tmp_path, {**DIES, "say": HELD}, max_attempts=5)
    error = await given_up(server)
    assert len(starts(server)) == 2
    assert error.diagnosis.cause == "memory-held"
    assert "nvidia-smi" in str(error)


@pytest.mark.fault(39)
@pytest.mark.parametrize("line", [HELD, f"torch.OutOfMemoryError: {TRIGGER}. Tried to allocate 2.00 GiB."])
async def test_who_holds_the_memory_is_named_with_its_pid(tmp_path: Path, nvml: Any, line: str) -> None:
    nvml.MACHINE.devices[0].compute = [nvml.ProcessInfo(4_000_077, 70 * GIB)]
    server = made(tmp_path, {**DIES, "say": line}, max_attempts=1)
    error = await given_up(server)
    assert error.diagnosis.cause == "memory-held"
    assert "program-4000077 (pid 4000077) holds 70.0 GiB of GPU 0" in str(error)


@pytest.mark.fault(41)
@pytest.mark.parametrize("names", ["0,2,1", "GPU-8932f937-d72c", "MIG-GPU-8932f937/1/0,MIG-4a5b", ""])
async def test_a_server_gets_the_names_of_its_gpus_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    async with fake(tmp_path, {"show_environment": True}) as server:
        await healthy(server)
    assert f"fake: CUDA_VISIBLE_DEVICES={names}" in tail(Path(str(starts(server)[0].log)), 1000)
    async with fake(tmp_path, {"show_environment": True}, env={"CUDA_VISIBLE_DEVICES": "7"}) as server:
        await healthy(server)
    assert "fake: CUDA_VISIBLE_DEVICES=7" in tail(Path(str(starts(server)[0].log)), 1000)


# The kernel's OOM killer


class Counting(LocalHost):
    """This machine, with the count of a control group that a test writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "state")
        self._root = folder / "root"
        shown = self._root / "proc" / "self"
        shown.mkdir(parents=True)
        (shown / "cgroup").write_text("0::/job\n")
        (shown / "mountinfo").write_text("1 2 0:3 / /cg rw - cgroup2 cgroup2 rw\n")
        (self._root / "cg" / "job").mkdir(parents=True)
        self.set(3)

    def set(self, kills: int) -> None:
        (self._root / "cg/job/memory.events").write_text(f"oom {kills}\noom_kill {kills}\n")

    def oom_kills(self) -> int | None:
        return cgroup.oom_kills(self._root)


@pytest.mark.parametrize("body", [{"signal": "SIGKILL"}, {"code": 0}, {"code": 1}])
@pytest.mark.parametrize("risen", [0, 1])
async def test_a_death_is_put_down_to_the_kernel_only_if_its_count_has_risen(
    tmp_path: Path, body: dict[str, Any], risen: int
) -> None:
    """The killer takes the largest process, which may be a child: then the main process ends by itself, in any way."""
    host = Counting(tmp_path)
    async with made(tmp_path, {}, host=host) as server:
        await healthy(server)
        seen = server.journal.seq
        host.set(3 + risen)
        with suppress(OSError):
            await tell(server, "/_exit", body)
        await server.driver.wait("Healthy", after=seen)
        found = next(r for r in server.journal.records if r.event == "Exited" and r.kind is Kind.TRANSITION)
        assert found.detail["diagnosis"]["cause"] == ("oom-killed" if risen else "exited")


async def test_a_server_that_the_kernel_kills_in_each_start_is_given_up_after_the_second(tmp_path: Path) -> None:
    host = Counting(tmp_path)
    killed = {"exit_before_bind": True, "die_by": "SIGKILL", "say": f"torch.OutOfMemoryError: {TRIGGER}"}

    def listen(record: Record) -> None:
        if record.event == "Launched":
            host.set(10 * record.attempt)

    server = made(tmp_path, killed, host=host, listener=listen, max_attempts=5)
    error = await given_up(server)
    assert error.diagnosis.cause == "oom-killed"
    assert error.diagnosis.verdict is Verdict.UNKNOWN
    assert len(starts(server)) == 2


# What users write


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    "prompt",
    [TRIGGER, f"torch.OutOfMemoryError: {TRIGGER}. Tried to allocate 2 GiB", f"line\n{TRIGGER}\nline",
     f"Traceback (most recent call last):\n  File \"x.py\", line 1\ntorch.OutOfMemoryError: {TRIGGER}\n\nwhy?"],
)  # fmt: skip
async def test_a_prompt_about_a_fault_does_nothing_neither_while_it_is_served_nor_when_the_server_dies(
    tmp_path: Path, prompt: str
) -> None:
    async with fake(tmp_path, {"log_prompts": True}) as server:
        await healthy(server)
        with anyio.fail_after(GUARD):
            await server.chat({"messages": [{"role": "user", "content": prompt}]})
        assert server.state == "Healthy"
        seen = server.journal.seq
        with suppress(OSError):
            await tell(server, "/_exit", {"code": 1})
        await server.driver.wait("Healthy", after=seen)
        await server.chat(HELLO)
    assert path_of(server).count("Healthy") == 2
    exited = next(r for r in server.journal.records if r.event == "Exited" and r.kind is Kind.TRANSITION)
    assert TRIGGER in " ".join(exited.detail["diagnosis"]["tail"])
    assert exited.detail["diagnosis"]["cause"] == "exited"
