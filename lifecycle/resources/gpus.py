"""The GPUs of this machine, by NVIDIA's management library (NVML), and the moment when a dead server's memory is back.

The library's Python bindings are the package nvidia-ml-py (`pip install 'stoker[gpu]'`). Without them, without a driver
or without a GPU there are no GPUs here, and that is no error.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

VISIBLE = "CUDA_VISIBLE_DEVICES"
TOLERANCE = 256 * 1024**2
"""Bytes of used memory that make no difference: contexts of the driver and of other processes come and go."""
LOOK = 0.1
"""Seconds between two looks at memory that is to come back."""
FALLEN, FLAT = 1.0, 3.0
"""Seconds without a change after which used memory counts as settled: it has fallen and goes on no more; it has not
fallen at all. A driver may begin to free memory only two seconds after the process has ended."""
STEP = 1024**2
"""Bytes; a smaller change is none."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    """As the driver knows it: in a container this may be another process's number, or none is told."""
    name: str
    """As in `ps`; empty if this user cannot see it."""
    used: int | None
    """Bytes; None if the driver does not say."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of one."""

    index: int
    """Its place in the order of the PCI bus (CUDA_DEVICE_ORDER=PCI_BUS_ID; with equal GPUs also CUDA's own order)."""
    uuid: str
    name: str
    """Its type, such as "NVIDIA H100 80GB HBM3"."""
    total: int
    """Bytes."""
    used: int
    free: int
    processes: tuple[GpuProcess, ...] = ()
    instances: tuple[Gpu, ...] = ()
    """Its MIG instances, if it is split into such: then only they can be used."""
    alias: str = ""
    """A MIG instance's older name, MIG-GPU-<uuid>/<GPU instance>/<compute instance>."""


def gpus(environ: Mapping[str, str | None] | None = None) -> tuple[Gpu, ...]:
    """The GPUs that a process with these variables would see, in its order. Empty if there are none.

    Args:
        environ: the variables of the server; None for our own. `CUDA_VISIBLE_DEVICES` may hold indices, UUIDs or their
            beginnings, and MIG names; an empty one hides all of them.
    """
    names = (os.environ if environ is None else environ).get(VISIBLE)
    return chosen(names, everything())


def everything() -> tuple[Gpu, ...]:
    """Every GPU of this machine that the driver shows, whatever the environment says. Takes a few milliseconds, on a
    machine whose driver has to wake up first (no persistence mode) seconds."""
    nvml = _begin()
    if nvml is None:
        return ()
    try:
        handles = [_ask(nvml.nvmlDeviceGetHandleByIndex, number) for number in range(nvml.nvmlDeviceGetCount())]
        return tuple(_gpu(nvml, handle, number) for number, handle in enumerate(handles) if handle is not None)
    except nvml.NVMLError:
        return ()
    finally:
        _end(nvml)


def chosen(names: str | None, found: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Those of `found` that `CUDA_VISIBLE_DEVICES` = `names` leaves, in its order; all of them if it is not set.

    As CUDA reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"): the first name that is none ends the
    list. Of a GPU that is split, an index or its UUID means the first instance.
    """
    if names is None:
        return tuple(_usable(gpu) for gpu in found)
    left: list[Gpu] = []
    for name in names.split(","):
        gpu = _named(name.strip(), found)
        if gpu is None or gpu in left:
            break
        left.append(gpu)
    return tuple(left)


def _named(name: str, found: Sequence[Gpu]) -> Gpu | None:
    if name.isascii() and name.isdigit():
        return next((_usable(gpu) for gpu in found if gpu.index == int(name)), None)
    if name.startswith("MIG-"):
        same = [one for gpu in found for one in gpu.instances if name == one.alias or one.uuid.startswith(name)]
    else:
        same = [_usable(gpu) for gpu in found if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return same[0] if len(same) == 1 else None  # a beginning that fits two of them names none


def _usable(gpu: Gpu) -> Gpu:
    return gpu.instances[0] if gpu.instances else gpu


class NvmlMemory:
    """The memory in use on some GPUs at one moment. Implements `lifecycle.host.DeviceMemory`."""

    def __init__(self, mark: Sequence[Gpu]) -> None:
        self._mark = tuple(mark)

    async def back(self, limit: float) -> bool:
        """See `lifecycle.host.DeviceMemory`."""
        return await settled(self._excess, limit)

    def holders(self, ours: frozenset[int]) -> tuple[str, ...]:
        """See `lifecycle.host.DeviceMemory`."""
        uuids = {gpu.uuid for gpu in self._mark}
        return holders([one for gpu in everything() for one in (gpu, *gpu.instances) if one.uuid in uuids], ours)

    async def _excess(self) -> Sequence[int]:
        # A driver that hangs must not hang the server's end: the thread is left behind when the limit is over.
        now = await anyio.to_thread.run_sync(_used, abandon_on_cancel=True)
        return [now.get(gpu.uuid, gpu.used) - gpu.used for gpu in self._mark]


def holders(found: Iterable[Gpu], ours: frozenset[int] = frozenset()) -> tuple[str, ...]:
    """Who else holds memory of these GPUs, in words, the most first.

    Args:
        ours: pids that are not meant.
    """
    others = [
        (one.used or 0, gpu.index, one)
        for gpu in found
        for one in gpu.processes
        if one.pid not in ours and (one.used is None or one.used > TOLERANCE)  # a display server is in nobody's way
    ]
    return tuple(
        f"{one.name or 'a process'} (pid {one.pid}) holds {in_words(one.used)} of GPU {index}"
        for _, index, one in sorted(others, key=lambda each: -each[0])
    )


def in_words(size: int | None) -> str:
    """Bytes, for people.

    >>> in_words(3 * 1024**3 // 2), in_words(300_000)
    ('1.5 GiB', '0.3 MiB')
    """
    if size is None:
        return "an unknown part"
    return f"{size / 1024**3:.1f} GiB" if size >= 1024**3 // 10 else f"{size / 1024**2:.1f} MiB"


def mark(environ: Mapping[str, str | None] | None = None) -> NvmlMemory | None:
    """The memory in use now on the GPUs that a process with these variables would see; None if it would see none."""
    found = gpus(environ)
    return NvmlMemory(found) if found else None


def _used() -> dict[str, int]:
    found = everything()
    return {one.uuid: one.used for gpu in found for one in (gpu, *gpu.instances)}


async def settled(excess: Callable[[], Awaitable[Sequence[int]]], limit: float) -> bool:
    """Wait until memory that is in use is back where it was, or will not come back.

    Args:
        excess: bytes in use on each GPU beyond what was in use at the mark.
        limit: seconds after which it is not waited for any longer.

    True: it is back on every GPU, within `TOLERANCE`. False: it has stopped falling above that (another process has
    taken some), or the limit is over.
    """
    with anyio.move_on_after(limit):
        lowest: int | None = None
        fell = False
        changed = anyio.current_time()
        while True:
            over = [max(0, one) for one in await excess()]
            if all(one <= TOLERANCE for one in over):
                return True
            now, total = anyio.current_time(), sum(over)
            if lowest is None or total <= lowest - STEP:
                fell, lowest, changed = lowest is not None, total, now
            elif now - changed >= (FALLEN if fell else FLAT):
                return False
            await anyio.sleep(LOOK)
    return False


def _begin() -> Any:
    """NVML, initialised; None where there is none. Bindings that cannot even be imported are none."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return None
    return nvml


def _end(nvml: Any) -> None:
    _ask(nvml.nvmlShutdown)


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """What NVML says, or None: each of its answers may be unsupported or forbidden by itself."""
    try:
        return function(*args)
    except Exception:
        return None


def _gpu(nvml: Any, handle: Any, index: int) -> Gpu:
    mode = _ask(nvml.nvmlDeviceGetMigMode, handle)  # [current, pending]
    split = bool(mode and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    uuid = _text(_ask(nvml.nvmlDeviceGetUUID, handle))
    return _device(nvml, handle, index, uuid, instances=tuple(_instances(nvml, handle, index, uuid)) if split else ())


def _instances(nvml: Any, parent: Any, index: int, uuid: str) -> Iterable[Gpu]:
    for number in range(_ask(nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
        handle = _ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, number)
        if handle is not None:
            own = _text(_ask(nvml.nvmlDeviceGetUUID, handle))
            parts = _ask(nvml.nvmlDeviceGetGpuInstanceId, handle), _ask(nvml.nvmlDeviceGetComputeInstanceId, handle)
            yield _device(nvml, handle, index, own, alias=f"MIG-{uuid}/{parts[0]}/{parts[1]}")


def _device(
    nvml: Any, handle: Any, index: int, uuid: str, *, instances: tuple[Gpu, ...] = (), alias: str = ""
) -> Gpu:
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    total, used, free = (memory.total, memory.used, memory.free) if memory else (0, 0, 0)
    name = _text(_ask(nvml.nvmlDeviceGetName, handle))
    return Gpu(index, uuid, name, total, used, free, _processes(nvml, handle), instances, alias)


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Who holds memory there: a process that computes and draws is named once."""
    found: dict[int, GpuProcess] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for one in _ask(ask, handle) or ():
            found.setdefault(one.pid, GpuProcess(one.pid, _name(nvml, one.pid), one.usedGpuMemory))
    return tuple(found.values())


def _name(nvml: Any, pid: int) -> str:
    """Engines give their processes titles, which the kernel's name has and the driver's path of the program has not."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return _text(_ask(nvml.nvmlSystemGetProcessName, pid)).rpartition("/")[2]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
