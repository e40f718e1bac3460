"""Compiles a kernel by NVRTC, which comes with PyTorch, and launches it with little host work."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch


class Kernel:
    """A compiled kernel. The driver is called directly: PyTorch's own launch of such a kernel
    passes integers and pointers as well, but takes twice the host's time."""

    def __init__(self, source: str, name: str) -> None:
        compiled: Any = torch.cuda._compile_kernel(source, name)
        self.kernel, self.name = compiled, name
        self.driver: Any = torch.cuda._utils._get_gpu_runtime_library()
        self.shared_bytes = 0

    def launch(
        self,
        blocks: int,
        threads: int,
        shared_bytes: int,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[int],
    ) -> None:
        """Tensors come first among the kernel's arguments. Takes the current stream, so that the
        call can be captured in a CUDA graph."""
        if shared_bytes > self.shared_bytes:
            self.kernel.set_shared_memory_config(shared_bytes)
            self.shared_bytes = shared_bytes
        values = [
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
            *(ctypes.c_int(number) for number in numbers),
        ]
        addresses = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        stream = ctypes.c_void_p(torch.cuda.current_stream(tensors[0].device).cuda_stream)
        code = self.driver.cuLaunchKernel(
            self.kernel.func, blocks, 1, 1, threads, 1, 1, shared_bytes, stream,
            (ctypes.c_void_p * len(values))(*addresses), None,
        )  # fmt: skip
        if code:
            raise RuntimeError(f"{self.name}: cuLaunchKernel failed with error {code}")
