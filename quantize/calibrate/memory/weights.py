"""Loads the next layer's weights onto the GPU while the current layer computes, and copies changed
weights back to the host while the next one does.

compressed-tensors copies an offloaded weight when it is first used, and copies every change back at
once, while the GPU waits. Here a thread copies the next layer's weights beforehand. When that layer
begins, they are put where compressed-tensors keeps the weights that it has loaded. Changes are made
on the GPU alone until the layer ends; then the thread copies them back. The GPU holds three layers
at most.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import torch
from compressed_tensors.offload.cache import OffloadCache
from compressed_tensors.offload.cache.cpu import CPUCache
from compressed_tensors.utils import patch_attr

from quantize.calibrate.memory.copies import Staging

Modules = Iterable[torch.nn.Module]
Pair = tuple[torch.Tensor, torch.Tensor]
"""An offloaded tensor and its loaded copy."""


@dataclass(frozen=True, eq=False)
class LoadedWeight:
    """An offloaded weight and its copy on the GPU."""

    offloaded: torch.Tensor
    version: int
    """The offloaded weight's version when its copy began; another one now means a stale copy."""
    loaded: torch.Tensor

    @property
    def is_current(self) -> bool:
        return bool(self.offloaded._version == self.version)


class Loader(Protocol):
    """Copies weights to the device that computes."""

    def is_remote(self, cache: OffloadCache, tensor: torch.Tensor) -> bool:
        """Whether the tensor has to be copied before it is computed with."""

    def prepared(self, tensors: list[torch.Tensor]) -> list[LoadedWeight]:
        """Memory for the copies; called in the main thread."""

    def copy(self, weights: list[LoadedWeight]) -> None:
        """Copies the weights, and returns when they are there; called in a thread."""

    def issued(self) -> object:
        """A mark of the work that was given to the device so far; called in the main thread."""

    def copy_back(self, pairs: list[Pair], after: object) -> None:
        """Copies each loaded tensor into the offloaded one, after the marked work, and returns when
        they are there; called in a thread."""


class CudaLoader:
    """Copies on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._staging = Staging(self._stream)
        self._allocated = torch.cuda.Event()

    def is_remote(self, cache: OffloadCache, tensor: torch.Tensor) -> bool:
        is_on_host = tensor.device.type == "cpu"
        return bool(is_on_host and torch.device(cache.onload_device) == self._device)

    def prepared(self, tensors: list[torch.Tensor]) -> list[LoadedWeight]:
        """Allocates on the computing stream. Its earlier work may still use this memory: copies
        wait for it."""
        weights = [empty_weight(tensor, self._device) for tensor in tensors]
        self._allocated.record(torch.cuda.current_stream(self._device))
        return weights

    def copy(self, weights: list[LoadedWeight]) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream), torch.no_grad():
            self._stream.wait_event(self._allocated)
            for weight in weights:
                self._staging.to_device(weight.loaded, weight.offloaded)
            self._stream.synchronize()

    def issued(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copy_back(self, pairs: list[Pair], after: object) -> None:
        assert isinstance(after, torch.cuda.Event)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream), torch.no_grad():
            self._stream.wait_event(after)
            for offloaded, loaded in pairs:
                self._staging.to_host(offloaded, loaded)


def empty_weight(tensor: torch.Tensor, device: torch.device) -> LoadedWeight:
    """Like compressed-tensors' own copy: of the same class and with the same attributes."""
    with torch.no_grad():
        loaded = torch.empty_like(tensor.data, device=device)
    loaded.__class__ = tensor.__class__
    loaded.__dict__ = tensor.__dict__.copy()
    return LoadedWeight(tensor, tensor._version, loaded)


class LayerWeights:
    """The weights of the layers in turn, each loaded while the layer before it computes, and copied
    back while the layer behind it does. Without a loader it does nothing."""

    def __init__(self, layers: Sequence[Modules], loader: Loader | None) -> None:
        self._layers, self._loader = layers, loader
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._next: list[LoadedWeight] = []
        self._copying: Future[None] | None = None
        self._changed: dict[torch.Tensor, None] = {}
        """Offloaded tensors whose loaded copies were changed."""
        self.copied_back: Future[None] = _finished()
        """Of the layer that was worked on last. Until it is done, its offloaded tensors are old."""

    @classmethod
    def of(
        cls, layers: Sequence[Modules], device: torch.device, excluded: torch.nn.Module | None
    ) -> "LayerWeights":
        """`excluded`: a module that no pass computes with, as the head."""
        modules = [[module for module in layer if module is not excluded] for layer in layers]
        return cls(modules, CudaLoader(device) if device.type == "cuda" else None)

    @contextmanager
    def of_layer(self, layer: int) -> Iterator[None]:
        """The context in which a layer is worked on, within `disable_offloading`: its weights are
        loaded, and those of the next layer begin to load."""
        if self._loader is None:
            yield
            return
        self._install_next()
        if layer + 1 < len(self._layers):
            self._begin(self._loader, self._layers[layer + 1])
        try:
            with patch_attr(CPUCache, "update_offload", self._update_later(self._loader)):
                yield
        finally:
            self._begin_copying_back(self._loader)

    def _update_later(self, loader: Loader) -> Callable[..., None]:
        """compressed-tensors' own update of an offloaded tensor, where the new values are not on
        the GPU; else the tensor is noted. compressed-tensors updates the loaded copy itself."""
        library_update = CPUCache.update_offload

        def update(cache: CPUCache, offloaded: torch.Tensor, data: torch.Tensor | None) -> None:
            loaded = OffloadCache.keep_onloaded_values.get(offloaded, offloaded)
            is_copy = loaded is not offloaded and loader.is_remote(cache, offloaded)
            if is_copy and data is not None:
                self._changed[offloaded] = None
            else:
                library_update(cache, offloaded, data)

        return update

    def _begin_copying_back(self, loader: Loader) -> None:
        loaded = OffloadCache.keep_onloaded_values
        pairs = [(tensor, loaded[tensor].detach()) for tensor in self._changed if tensor in loaded]
        self.copied_back.result()  # raises if the layer before could not be copied
        self.copied_back = self._thread.submit(loader.copy_back, pairs, loader.issued())

    def _install_next(self) -> None:
        """Gives the loaded weights to compressed-tensors. A weight that was changed since is left
        out, and is then loaded when it is used."""
        assert OffloadCache.offloading_disabled
        if self._copying is not None:
            self._copying.result()
        weights, self._next, self._copying = self._next, [], None
        changed, self._changed = self._changed, {}
        if any(weight.offloaded in changed for weight in weights):  # layers that share a weight
            self.copied_back.result()
        OffloadCache.keep_onloaded_values.update(
            {
                weight.offloaded: weight.loaded
                for weight in weights
                if weight.is_current and weight.offloaded not in changed
            }
        )

    def _begin(self, loader: Loader, modules: Modules) -> None:
        try:
            self._next = loader.prepared(_remote_tensors(modules, loader))
        except torch.OutOfMemoryError:
            return  # they are loaded when they are used, after the current layer's are freed
        self._copying = self._thread.submit(loader.copy, self._next)

    def __enter__(self) -> "LayerWeights":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown(wait=True)
        self._next = []
        if error is None:
            self.copied_back.result()


def _finished() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _remote_tensors(modules: Modules, loader: Loader) -> list[torch.Tensor]:
    """The modules' own offloaded tensors that have to be copied, each once."""
    tensors: dict[torch.Tensor, None] = {}
    for module in modules:
        for cache in (module._parameters, module._buffers):
            if isinstance(cache, OffloadCache):
                for tensor in cache.offloaded_values.values():
                    if tensor is not None and loader.is_remote(cache, tensor):
                        tensors[tensor] = None
    return list(tensors)
