"""Compiles a kernel by NVRTC, which comes with PyTorch, and launches it with little host work."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_..., in cuda.h
ATTRIBUTE_VALUE_BYTES = 64
PREFERRED_SHARED_MEMORY_CARVEOUT, ALL = 9, 100  # CU_FUNC_ATTRIBUTE_...; percent


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; of the union of values only its first number is used."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * (ATTRIBUTE_VALUE_BYTES - 4)),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


def overlapping_config(blocks: int, threads: int, shared_bytes: int, stream: int) -> LaunchConfig:
    """A launch that may begin before the kernel in front of it has ended."""
    attribute = LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
    return LaunchConfig(
        (blocks, 1, 1), (threads, 1, 1), shared_bytes, stream, ctypes.pointer(attribute), 1
    )


class Kernel:
    """A compiled kernel. The driver is called directly: PyTorch's own launch of such a kernel
    passes integers and pointers as well, but takes twice the host's time."""

    def __init__(self, source: str, name: str, architecture: str | None = None) -> None:
        """`architecture`: such as 90a, for instructions of one generation only; else the GPU's."""
        compiled: Any = torch.cuda._compile_kernel(source, name, compute_capability=architecture)
        self.kernel, self.name = compiled, name
        self.driver: Any = torch.cuda._utils._get_gpu_runtime_library()
        self.shared_bytes = 0

    def prefer_shared_memory(self) -> None:
        """Of the memory that L1 and shared memory divide, as much as can be for the latter. Else
        the driver may leave room for one block only; and kernels that divide it in different ways
        do not run side by side."""
        code = self.driver.cuFuncSetAttribute(
            self.kernel.func, PREFERRED_SHARED_MEMORY_CARVEOUT, ALL
        )
        if code:
            raise RuntimeError(f"{self.name}: cuFuncSetAttribute failed with error {code}")

    def launch(
        self,
        blocks: int,
        threads: int,
        shared_bytes: int,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[int],
        overlaps: bool = False,
    ) -> None:
        """Tensors come first among the kernel's arguments. Takes the current stream, so that the
        call can be captured in a CUDA graph. With `overlaps`, the kernel may begin before the one
        in front of it has ended (programmatic dependent launch): it must execute
        `griddepcontrol.wait` before it reads what that one wrote, and before it writes."""
        if shared_bytes > self.shared_bytes:
            self.kernel.set_shared_memory_config(shared_bytes)
            self.shared_bytes = shared_bytes
        values = [
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
            *(ctypes.c_int(number) for number in numbers),
        ]
        addresses = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        arguments = (ctypes.c_void_p * len(values))(*addresses)
        stream = torch.cuda.current_stream(tensors[0].device).cuda_stream
        if overlaps:
            config = overlapping_config(blocks, threads, shared_bytes, stream)
            code = self.driver.cuLaunchKernelEx(
                ctypes.byref(config), self.kernel.func, arguments, None
            )
        else:
            code = self.driver.cuLaunchKernel(
                self.kernel.func, blocks, 1, 1, threads, 1, 1, shared_bytes,
                ctypes.c_void_p(stream), arguments, None,
            )  # fmt: skip
        if code:
            raise RuntimeError(f"{self.name}: the launch failed with error {code}")
