"""Copies between host and GPU that run beside the computation.

Two rules keep them right. A copy begins after everything that was issued to the computing stream
before it. Whatever its result or its source is used for next comes after `join`, which makes the
computing stream wait. All GPU tensors are allocated on the computing stream, so memory that is
freed after `join` can be used again at once, and no copy needs `record_stream`.
"""

from collections.abc import Iterator
from typing import Protocol

import torch

LEAST_STAGED = 2**20  # bytes; the way over a buffer costs more than it saves for a smaller tensor
STAGED_AT_ONCE = 2**26


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


class Staging:
    """Page-locked memory through which weights in ordinary host memory go to the GPU and back.

    Page-locking the weights themselves takes longer than copying them (0.22 s a layer of
    Qwen3-8B's width on an H200), and CUDA lets no other thread launch a kernel meanwhile. Two
    buffers take turns: while the GPU copies one, the host fills or empties the other.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._buffers = [_page_locked(STAGED_AT_ONCE) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies into the GPU's memory, on the current stream; returns before it is there."""
        if not is_staged(target, source):
            target.copy_(source, non_blocking=True)
            return
        for there, here in chunks(target, source):
            buffer, copied = self._next_buffer(len(here))
            buffer.copy_(here)
            there.copy_(buffer, non_blocking=True)
            copied.record(self._stream)

    def to_host(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies into the host's memory."""
        if not is_staged(target, source):
            target.copy_(source)
            return
        arriving: tuple[torch.Tensor, torch.Tensor, torch.cuda.Event] | None = None
        for here, there in chunks(target, source):
            buffer, copied = self._next_buffer(len(there))
            buffer.copy_(there, non_blocking=True)
            copied.record(self._stream)
            _store(arriving)
            arriving = here, buffer, copied
        _store(arriving)

    def _next_buffer(self, size: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        """The other buffer, as soon as its last copy is done."""
        self._turn = 1 - self._turn
        self._copied[self._turn].synchronize()
        return self._buffers[self._turn][:size], self._copied[self._turn]


def _page_locked(size: int) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:  # the system refuses: copies are only slower
        return torch.empty(size, dtype=torch.uint8)


def _store(arriving: tuple[torch.Tensor, torch.Tensor, torch.cuda.Event] | None) -> None:
    if arriving is not None:
        target, buffer, copied = arriving
        copied.synchronize()
        target.copy_(buffer)


def is_staged(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy is worth the way over a buffer, and can be cut into bytes."""
    is_plain = target.is_contiguous() and source.is_contiguous() and target.dtype == source.dtype
    return is_plain and bool(source.nbytes >= LEAST_STAGED)


def chunks(
    target: torch.Tensor, source: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both tensors as bytes, in parts that fit a buffer."""
    parts = [tensor.detach().view(-1).view(torch.uint8) for tensor in (target, source)]
    return zip(*(part.split(STAGED_AT_ONCE) for part in parts), strict=True)
