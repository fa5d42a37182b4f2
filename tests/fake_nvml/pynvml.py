"""A stand-in for the package nvidia-ml-py (13.615) on a machine that has no driver: the functions that Stoker calls,
with the same names, arguments, results and errors. What it answers is in `MACHINE`, which a test fills.

Put this folder at the head of `sys.path`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NVML_DEVICE_MIG_ENABLE = 0x1
NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 1, 2, 3
NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 4, 6, 9


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class ProcessInfo:
    pid: int
    usedGpuMemory: int | None


@dataclass
class Device:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * 1024**3
    used: int = 0
    compute: list[ProcessInfo] = field(default_factory=list)
    graphics: list[ProcessInfo] = field(default_factory=list)
    mig: list[Device | None] = field(default_factory=list)
    """MIG instances; None is a slot without one."""
    ids: tuple[int, int] = (0, 0)
    """Of a MIG instance: GPU instance, compute instance."""
    errors: dict[str, int] = field(default_factory=dict)
    """Error by the name of the function that raises it."""


@dataclass
class Memory:
    total: int
    free: int
    used: int


@dataclass
class Machine:
    devices: list[Device] = field(default_factory=list)
    driver: bool = True
    begun: int = 0
    """Initialisations that have not been shut down."""


MACHINE = Machine()


def _check(device: Device, function: str) -> None:
    if not MACHINE.begun:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    if function in device.errors:
        raise NVMLError(device.errors[function])


def nvmlInit() -> None:
    if not MACHINE.driver:
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    MACHINE.begun += 1


def nvmlShutdown() -> None:
    if not MACHINE.begun:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    MACHINE.begun -= 1


def nvmlDeviceGetCount() -> int:
    return len(MACHINE.devices)


def nvmlDeviceGetHandleByIndex(index: int) -> Device:
    if not 0 <= index < len(MACHINE.devices):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    device = MACHINE.devices[index]
    _check(device, "nvmlDeviceGetHandleByIndex")
    return device


def nvmlDeviceGetUUID(handle: Device) -> str:
    _check(handle, "nvmlDeviceGetUUID")
    return handle.uuid


def nvmlDeviceGetName(handle: Device) -> str:
    _check(handle, "nvmlDeviceGetName")
    return handle.name


def nvmlDeviceGetMemoryInfo(handle: Device, version: int | None = None) -> Memory:
    _check(handle, "nvmlDeviceGetMemoryInfo")
    return Memory(handle.total, handle.total - handle.used, handle.used)


def nvmlDeviceGetComputeRunningProcesses(handle: Device) -> list[ProcessInfo]:
    _check(handle, "nvmlDeviceGetComputeRunningProcesses")
    return handle.compute


def nvmlDeviceGetGraphicsRunningProcesses(handle: Device) -> list[ProcessInfo]:
    _check(handle, "nvmlDeviceGetGraphicsRunningProcesses")
    return handle.graphics


def nvmlSystemGetProcessName(pid: int) -> str:
    if pid < 4_000_000:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return f"/usr/bin/program-{pid}"


def nvmlDeviceGetMigMode(device: Device) -> list[int]:
    _check(device, "nvmlDeviceGetMigMode")
    return [int(bool(device.mig))] * 2


def nvmlDeviceGetMaxMigDeviceCount(device: Device) -> int:
    return len(device.mig)


def nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: int) -> Device:
    found = device.mig[index]
    if found is None:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return found


def nvmlDeviceGetGpuInstanceId(device: Device) -> int:
    return device.ids[0]


def nvmlDeviceGetComputeInstanceId(device: Device) -> int:
    return device.ids[1]
