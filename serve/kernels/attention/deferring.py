"""Leaves the rotation of a step's queries and keys to attention.

The op that rotates knows no layer, so its answer is one for all layers of a step. It leaves a note
for attention. Without a note, queries and keys are rotated: the op was replayed by a piece of a
graph, or a graph has its kernel instead.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from serve.kernels.attention.launch import Rope


@dataclass(frozen=True)
class Modules:
    """The modules of vLLM that normalize and rotate a layer's queries and keys."""

    rotary: Any
    q_norm: Any = None
    k_norm: Any = None

    @property
    def rope(self) -> Rope:
        """Read at each call: vLLM may replace the tensors of a module."""
        if self.q_norm is None:
            return Rope(self.rotary.cos_sin_cache)
        epsilon = float(self.q_norm.variance_epsilon)
        weights = self.q_norm.weight.data, self.k_norm.weight.data
        return Rope(self.rotary.cos_sin_cache, *weights, epsilon)


_READY: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
"""By the first layer of an engine: whether all of its attention is ours and rotates."""


def defers(context: Any) -> bool:
    """Whether attention rotates in this step, in all layers."""
    every = context.attn_metadata
    if not isinstance(every, dict) or not every:
        return False
    metadata = next(iter(every.values()))
    if getattr(metadata, "max_query_len", None) != 1:
        return False
    layers = [context.no_compile_layers[name] for name in every]
    if layers[0] not in _READY:
        _READY[layers[0]] = all(map(_is_ready, layers))
    # Steps of one kind of cache have one metadata for all layers.
    return (
        _READY[layers[0]]
        and all(other is metadata for other in every.values())
        and layers[0].impl.options(metadata, context) is not None
    )


def _is_ready(layer: Any) -> bool:
    impl: Any = getattr(layer, "impl", None)
    return getattr(impl, "modules", None) is not None and impl.plan is not None


_NOTES: list[int] = []
"""The address of queries that are not rotated, until attention takes them."""


def leave(qkv: torch.Tensor) -> None:
    """Notes that attention has to rotate."""
    _NOTES[:] = [qkv.data_ptr()]


def is_left(query: torch.Tensor) -> bool:
    """Whether these queries were left to attention. Call it once for each attention."""
    if not _NOTES:
        return False
    address = _NOTES.pop()
    if address != query.data_ptr():
        raise RuntimeError("quantline: queries were not rotated; use engine.kernels=vllm")
    return True
