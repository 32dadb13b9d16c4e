"""What the NVIDIA driver's own library (NVML) says of the GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

import msgspec


class NvmlGpu(msgspec.Struct, frozen=True):
    name: str
    capability: str
    memory: int
    uuid: str


class NvmlAnswer(msgspec.Struct, frozen=True):
    """What the driver's own library says; `error` is why it could not be asked."""

    error: str = ""
    driver: str = ""
    cuda: str = ""
    gpus: tuple[NvmlGpu, ...] = ()


def ask_nvml() -> NvmlAnswer:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return NvmlAnswer(error="libnvidia-ml.so.1 is not there: no NVIDIA driver")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlAnswer(error=str(error))
    try:
        gpus = tuple(_nvml_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount()))
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        return NvmlAnswer("", driver, f"{cuda // 1000}.{cuda % 1000 // 10}", gpus)
    except pynvml.NVMLError as error:
        return NvmlAnswer(error=str(error))
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    name, uuid = str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetUUID(handle))
    return NvmlGpu(name, f"{major}.{minor}", memory, uuid)
