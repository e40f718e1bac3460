"""The op quantline::rotate, which normalizes and rotates queries and keys in place.

In a step that decodes, it leaves that to attention.
"""

import torch

from serve.kernels.attention.deferring import defers, leave
from serve.kernels.attention.launch import Rope, rotate
from serve.kernels.attention.shape import Shape
from serve.kernels.define import define

NAME = "rotate"
SCHEMA = (
    "(Tensor(a!) qkv, Tensor positions, Tensor rotations, Tensor? q_weight,"
    " Tensor? k_weight, float epsilon, int heads, int key_heads) -> ()"
)


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


def register() -> None:
    """Defines the op, once in a process."""
    define(NAME, SCHEMA, _rotate, _rotate, _rotate_fake, exact_strides=True)
