"""Where a layer's inputs are kept between layers: on the GPU while they fit, else on the host.

llm-compressor's IntermediatesCache keeps all of them in one place. Its `iter_prefetch` copies from
memory that is not page-locked, and does not keep the copies' GPU memory from being used again
while a batch still computes with it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import psutil
import torch

from quantize.calibrate.memory.copies import CopyStream, CudaCopyStream, NoCopies, host_buffer
from quantize.estimate import MOST_KEPT, LayerShape, activation_budget, step_bytes
from quantize.steps.base.step import Step

Values = dict[str, Any]
Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]


@dataclass(frozen=True, eq=False)
class OnHost:
    """A GPU tensor that is kept in host memory."""

    buffer: torch.Tensor


Leaf: TypeAlias = torch.Tensor | OnHost


class Activations:
    """The inputs of the next layer, for each batch.

    Batches whose tensors fit within `gpu_bytes` stay on the GPU. The others are copied to the
    host, and back one batch before they are needed, while other batches compute.
    """

    def __init__(
        self, device: torch.device, gpu_bytes: float, to_host: CopyStream, to_device: CopyStream
    ) -> None:
        self._device, self._gpu_bytes = device, gpu_bytes
        self._to_host, self._to_device = to_host, to_device
        self._batches: list[Values] = []
        self._on_gpu: list[dict[str, int]] = []
        """Bytes on the GPU of each batch, by name."""
        self.gpu_bytes_used = 0
        self._free_buffers: dict[Layout, list[torch.Tensor]] = defaultdict(list)

    def append(self, values: Values) -> None:
        """Adds a batch."""
        self._batches.append({})
        self._on_gpu.append({})
        on_device = {name: _with_tensors(value, self._loaded) for name, value in values.items()}
        self.update(len(self._batches) - 1, on_device)

    def update(self, batch: int, values: Values) -> None:
        """Adds values to a batch, or replaces them. The tensors must not be changed afterwards."""
        self.delete(batch, values)
        sizes = {name: _held_bytes(value, self._device) for name, value in values.items()}
        if self.gpu_bytes_used + sum(sizes.values()) > self._gpu_bytes:
            values = self._moved_to_host(values)
            sizes = dict.fromkeys(values, 0)
        self._batches[batch].update(values)
        self._on_gpu[batch].update(sizes)
        self.gpu_bytes_used += sum(sizes.values())

    def iter(self, names: Iterable[str]) -> Iterator[Values]:
        """The named values of each batch in turn, on the device. A caller may update and delete
        values of the batch that it holds."""
        wanted = set(names)
        self._to_host.join()  # what was stored last may still be on its way
        try:
            ready = self._begin_fetch(0, wanted) if self._batches else {}
            for batch in range(len(self._batches)):
                self._to_device.join()
                current = ready
                if batch + 1 < len(self._batches):
                    ready = self._begin_fetch(batch + 1, wanted)
                yield current
        finally:
            self._to_device.join()
            self._to_host.join()

    @classmethod
    def of(cls, batches: Iterable[Values], device: torch.device, gpu_bytes: float) -> "Activations":
        """The batches of a data loader. Without CUDA everything stays where it is computed."""
        if device.type == "cuda":
            activations = cls(device, gpu_bytes, CudaCopyStream(device), CudaCopyStream(device))
        else:
            activations = cls(device, math.inf, NoCopies(), NoCopies())
        for batch in batches:
            activations.append(batch)
        return activations

    def has_room(self, value: Any) -> bool:
        """Whether a value that can be computed again is worth its memory: it would stay on the GPU,
        or, without one, half of the host's memory is free."""
        if math.isinf(self._gpu_bytes):
            memory = psutil.virtual_memory()
            return bool(memory.available > memory.total / 2)
        most = min(self._gpu_bytes, MOST_KEPT)
        return self.gpu_bytes_used + _held_bytes(value, self._device) <= most

    def _loaded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)

    def _begin_fetch(self, batch: int, names: set[str]) -> Values:
        pairs = []

        def fetched(leaf: Leaf) -> Leaf:
            if not isinstance(leaf, OnHost):
                return leaf
            tensor = torch.empty_like(leaf.buffer, device=self._device)
            pairs.append((tensor, leaf.buffer))
            return tensor

        stored = self._batches[batch]
        values = {name: _mapped(stored[name], fetched) for name in stored if name in names}
        if pairs:
            self._to_device.start(pairs)
        return values

    def _moved_to_host(self, values: Values) -> Values:
        pairs = []

        def moved(tensor: torch.Tensor) -> torch.Tensor | OnHost:
            if tensor.device != self._device:
                return tensor
            buffer = self._buffer(tensor)
            pairs.append((buffer, tensor))
            return OnHost(buffer)

        on_host = {name: _with_tensors(value, moved) for name, value in values.items()}
        if pairs:
            self._to_host.start(pairs)
        return on_host

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host buffer. One that was used before is safe to fill: the copy out of it came before
        the computation whose result is copied now."""
        free = self._free_buffers[_layout(torch.empty_like(tensor, device="meta"))]
        return free.pop() if free else host_buffer(tensor)

    def delete(self, batch: int, names: Iterable[str]) -> None:
        """Removes values of a batch."""
        for name in names:
            self.gpu_bytes_used -= self._on_gpu[batch].pop(name, 0)
            for leaf in _leaves(self._batches[batch].pop(name, None)):
                if isinstance(leaf, OnHost):
                    self._free_buffers[_layout(leaf.buffer)].append(leaf.buffer)


def gpu_budget(
    model: Any, step: Step[Any], batches: Iterable[Values], device: torch.device
) -> float:
    """Bytes of activations that may stay on the GPU during a step."""
    if device.type != "cuda":
        return 0.0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + unused
    batch_tokens = max(batch["input_ids"].numel() for batch in batches)
    return activation_budget(free, step_bytes(step, LayerShape.of(model), batch_tokens))


def _layout(tensor: torch.Tensor) -> Layout:
    return tensor.shape, tensor.stride(), tensor.dtype


def _held_bytes(value: Any, device: torch.device) -> int:
    """Memory of the device that a value keeps from being used again: the whole of what a view
    looks at."""
    tensors = [leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device == device]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _with_tensors(value: Any, change: Callable[[torch.Tensor], Leaf]) -> Any:
    return _mapped(value, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _leaves(value: Any) -> list[Leaf]:
    """All tensors in a value, on the device or on the host."""
    leaves: list[Leaf] = []

    def noted(leaf: Leaf) -> Leaf:
        leaves.append(leaf)
        return leaf

    _mapped(value, noted)
    return leaves


def _mapped(value: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """The value with every tensor in it changed; the containers are those of IntermediatesCache."""
    match value:
        case torch.Tensor() | OnHost():
            return change(value)
        case list():
            return [_mapped(entry, change) for entry in value]
        case tuple():
            return tuple(_mapped(entry, change) for entry in value)
        case dict():
            return {key: _mapped(entry, change) for key, entry in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            entries = {field.name: getattr(value, field.name) for field in fields(value)}
            return type(value)(**_mapped(entries, change))
        case _:
            return value
