"""This machine's accelerators, as the driver names them, and the features of its CPU."""

import hashlib
import os
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from conf.process.visible_gpus import VISIBLE
from conf.schema.load import GpuConfig

BF16_FLAGS = {"bf16", "avx512_bf16", "amx_bf16"}
AMX_FLAGS = {"amx_tile"}
INT8_FLAGS = {"i8mm", "avx512_vnni", "avx_vnni", "amx_int8"}
CPU = "cpu"
GPU_FILES = Path(__file__).parent / "gpu"


@cache
def cpu_has_bf16() -> bool:
    """Whether the CPU has bf16 products; without them float32 can be 300 times faster."""
    return bool(BF16_FLAGS & _cpu_flags())


@cache
def cpu_has_int8() -> bool:
    """Whether the CPU has units for INT8 matrix products."""
    return bool(INT8_FLAGS & _cpu_flags())


@cache
def cpu_has_amx() -> bool:
    """Whether the CPU has Intel's AMX, which vLLM's CPU kernels for quantized experts need."""
    return bool(AMX_FLAGS & _cpu_flags())


@cache
def cpu_has_i8mm() -> bool:
    """Whether an ARM CPU has INT8 matrix products, which vLLM's kernel for INT8 experts uses."""
    return "i8mm" in _cpu_flags()


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    return {flag for line in lines for flag in line.split(":", 1)[-1].split()}


@cache
def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "cpu part")):
                return f"{platform.machine()} {line.split(':', 1)[-1].strip()}"
    except OSError:
        pass
    return platform.machine()


def gpu_handles() -> list[Any]:
    """NVML's handles of the GPUs that programs here may use, in their order; empty without a
    driver. CUDA_VISIBLE_DEVICES names them by number or by the beginning of their UUID."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        visible = os.environ.get(VISIBLE)
        if visible is None:
            return handles
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        visible_handles = []
        for entry in filter(None, (text.strip() for text in visible.split(","))):
            matches = [n for n in range(count) if entry == str(n) or uuids[n].startswith(entry)]
            if not matches:
                break  # CUDA, too, stops at the first that does not exist
            visible_handles.append(handles[matches[0]])
        return visible_handles
    except pynvml.NVMLError:
        return []


def gpu_names() -> list[str]:
    """The NVIDIA GPUs that programs here may use, by the driver's name."""
    import pynvml

    return [str(pynvml.nvmlDeviceGetName(handle)) for handle in gpu_handles()]


def gpu_cards() -> list[str]:
    """A short hash of each GPU's UUID, in the same order: cards of the same name differ in speed.
    Empty where the driver does not give UUIDs."""
    import pynvml

    try:
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in gpu_handles()]
    except pynvml.NVMLError:
        return []
    return [hashlib.sha256(uuid.encode()).hexdigest()[:8] for uuid in uuids]


def resolve_gpu(requested: GpuConfig) -> GpuConfig:
    """The requested GPU; without a name the one of this machine, with its known specifications."""
    if requested.name:
        return requested
    names = gpu_names()
    if not names:
        return replace(requested, name=CPU)
    for path in sorted(GPU_FILES.glob("*.yaml")):
        fields = yaml.safe_load(path.read_text())
        if fields.get("name") == names[0]:
            return GpuConfig(**fields)
    return replace(requested, name=names[0])


def compute_capability(gpu: GpuConfig) -> float | None:
    """The compute capability of the named GPU, else of this machine's; None without a GPU."""
    import pynvml

    handles = gpu_handles()
    if gpu.compute_capability is not None or not handles:
        return gpu.compute_capability
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handles[0])
    return float(major) + float(minor) / 10


def gpu_memory_gib() -> list[tuple[float, float]]:
    """Total and free memory of each GPU."""
    import pynvml

    infos = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in gpu_handles()]
    return [(info.total / 2**30, info.free / 2**30) for info in infos]
