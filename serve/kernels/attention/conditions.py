"""Which layers of vLLM our attention runs."""

from typing import Any

import torch

from serve.kernels.attention.proof import LENGTHS
from serve.kernels.attention.shape import WIDTHS, Shape

SIXTEEN_BIT = ("auto", "bfloat16", "float16")
NO_WINDOW = (-1, -1)
ROTATING = ("RotaryEmbedding", "Llama3RotaryEmbedding", "YaRNScalingRotaryEmbedding")
"""Classes of vLLM with one table of cosines and sines, in the order of positions."""


def refusal(impl: Any, shape: Shape) -> str:
    """Why a layer of vLLM's FlashAttention stays with it; empty where it does not."""
    found = (
        ("it is no decoder", impl.attn_type != "decoder"),
        (f"its cache holds {impl.kv_cache_dtype}", impl.kv_cache_dtype not in SIXTEEN_BIT),
        ("it has a sliding window", tuple(impl.sliding_window) != NO_WINDOW),
        ("it has ALiBi", impl.alibi_slopes is not None),
        ("its scores are capped", bool(impl.logits_soft_cap)),
        ("it has sinks", impl.sinks is not None),
        ("it reads another layer's cache", impl.kv_sharing_target_layer_name is not None),
        ("its context is spread over GPUs", impl.dcp_world_size > 1),
        ("results must not depend on the batch", bool(impl.batch_invariant_enabled)),
    )
    return next((reason for reason, holds in found if holds), shape.refusal)


def can_rotate(rotary: Any, width: int) -> bool:
    """Whether our kernel rotates as a module of vLLM does: whole heads, halves apart, with cosines
    and sines from a table by position, which has enough of them for our proof."""
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    cache = getattr(rotary, "cos_sin_cache", None)
    return (
        isinstance(rotary, RotaryEmbedding)
        and type(rotary).__name__ in ROTATING
        and type(rotary).forward_native is RotaryEmbedding.forward_native
        and type(rotary).forward_cuda is RotaryEmbedding.forward_cuda
        and rotary.is_neox_style
        and rotary.rotary_dim == rotary.head_size == width
        and isinstance(cache, torch.Tensor)
        and cache.dim() == 2
        and cache.shape[1] == width
        and width in WIDTHS
        and cache.shape[0] >= max(LENGTHS)
    )


def can_normalize(norm: Any, width: int) -> bool:
    """Whether our kernel normalizes heads as a module of vLLM does."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    return (
        type(norm) is RMSNorm
        and norm.variance_size_override is None
        and isinstance(norm.weight, torch.Tensor)
        and tuple(norm.weight.shape) == (width,)
    )
