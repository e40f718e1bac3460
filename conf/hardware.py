"""What this machine has: its accelerators as the driver names them, and what its CPU can do."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from conf.load_schema import GpuConfig

BF16_FLAGS = {"bf16", "avx512_bf16", "amx_bf16"}
CPU = "cpu"
GPU_FILES = Path(__file__).parent / "gpu"


@cache
def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself; float32 can be 300 times faster where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    return any(BF16_FLAGS & set(line.split(":", 1)[-1].split()) for line in lines)


def gpu_names() -> list[str]:
    """The NVIDIA GPUs of this machine, by the driver's name; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    except pynvml.NVMLError:
        return []


def resolve_gpu(asked: GpuConfig) -> GpuConfig:
    """The GPU that was asked for, or the one that is here with what is known of it."""
    if asked.name:
        return asked
    names = gpu_names()
    if not names:
        return replace(asked, name=CPU)
    for path in sorted(GPU_FILES.glob("*.yaml")):
        facts = yaml.safe_load(path.read_text())
        if facts.get("name") == names[0]:
            return GpuConfig(**facts)
    return replace(asked, name=names[0])
