"""Copies between host and GPU that run beside the computation.

Two rules keep them right. A copy begins after everything that was issued to the computing stream
before it. Whatever its result or its source is used for next comes after `join`, which makes the
computing stream wait. All GPU tensors are allocated on the computing stream, so memory that is
freed after `join` can be used again at once, and no copy needs `record_stream`.
"""

from typing import Protocol

import torch

LEAST_LOCKED = 2**20  # bytes; locking a smaller tensor costs more than it saves


class CopyStream(Protocol):
    """Copies in one direction, at most one group of them under way."""

    def start(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begins to copy each second tensor into the first."""

    def join(self) -> None:
        """What is issued from now on comes after these copies."""


class NoCopies:
    """Where everything is computed and kept in the same memory."""

    def start(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        raise AssertionError("nothing needs a copy")

    def join(self) -> None:
        pass


class CudaCopyStream:
    """Copies on a CUDA stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def start(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.join()
        self._under_way = pairs  # keeps their memory from being used again too early
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._under_way = []


def host_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """Uninitialized host memory for a tensor, in its layout; page-locked, so that copies run
    beside the computation, unless the system refuses that much."""
    try:
        return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    except RuntimeError:
        return torch.empty_like(tensor, device="cpu")


class PageLocks:
    """Page-locks tensors that are in host memory already. Copies of such memory are several times
    as fast and run beside the computation. The system may refuse, as for a file that is mapped
    read-only: then copies are only slower."""

    def __init__(self) -> None:
        self._locked: dict[int, torch.Tensor] = {}
        """By address. A locked tensor is held, so that its memory is not freed before."""

    def lock(self, tensors: list[torch.Tensor]) -> None:
        runtime = torch.cuda.cudart()
        for tensor in tensors:
            address = tensor.data_ptr()
            is_large = tensor.nbytes >= LEAST_LOCKED and tensor.is_contiguous()
            if is_large and address not in self._locked and not tensor.is_pinned():
                result = runtime.cudaHostRegister(address, tensor.nbytes, 0)
                if result == runtime.cudaError.success:
                    self._locked[address] = tensor

    def unlock(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if self._locked.pop(tensor.data_ptr(), None) is not None:
                torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
