"""The op quantline::rotate, which normalizes and rotates queries and keys in place.

In a step that decodes, it leaves that to attention.
"""

import torch

from serve.kernels.attention.deferring import defers, leave
from serve.kernels.attention.launch import Rope, rotate
from serve.kernels.attention.shape import Shape

LIBRARY, NAME = "quantline", "rotate"
SCHEMA = (
    f"{NAME}(Tensor(a!) qkv, Tensor positions, Tensor rotations, Tensor? q_weight,"
    " Tensor? k_weight, float epsilon, int heads, int key_heads) -> ()"
)
_LIBRARIES: list[torch.library.Library] = []
"""Keeps the definition alive: a library that is collected takes its op along."""


def _rotate(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rotations: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    epsilon: float,
    heads: int,
    key_heads: int,
) -> None:
    from vllm.forward_context import get_forward_context, is_forward_context_available

    if qkv.shape[0] == 0:
        return
    if is_forward_context_available() and defers(get_forward_context()):
        leave(qkv)
        return
    shape = Shape(heads, key_heads, rotations.shape[1], qkv.dtype)
    rotate(shape, qkv, positions, Rope(rotations, q_weight, k_weight, epsilon))


def _rotate_fake(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rotations: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    epsilon: float,
    heads: int,
    key_heads: int,
) -> None:
    return None


def define() -> None:
    """Defines the op, once in a process."""
    if _LIBRARIES:
        return
    library = torch.library.Library(LIBRARY, "FRAGMENT")
    fallback = torch.Tag.needs_fixed_stride_order  # of older versions
    library.define(SCHEMA, tags=(getattr(torch.Tag, "needs_exact_strides", fallback),))
    for dispatch_key in ("CUDA", "CPU"):
        library.impl(NAME, _rotate, dispatch_key)
    library._register_fake(NAME, _rotate_fake)
    _LIBRARIES.append(library)
