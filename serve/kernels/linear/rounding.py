"""Rounding of activations by token, before the op: one op of ours in a compiled graph, which a pass
fuses with the norm or activation function in front."""

import importlib.util

import torch

from serve.kernels.rounding import ops, traced
from serve.kernels.rounding.launch import takes

HAS_TRITON = importlib.util.find_spec("triton") is not None
ops.register()  # before anything is traced


def is_ours(x: torch.Tensor) -> bool:
    """Whether our kernels round these activations [tokens, K]. Not without torch.compile: nothing
    is fused there, and vLLM's kernel takes less of the host's time."""
    return torch.compiler.is_compiling() and x.is_cuda and HAS_TRITON and takes(x)


def round_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, K] as INT8, and what it was divided by, [tokens, 1]."""
    if is_ours(x):
        return ops.round_tokens(x, False)
    if not torch.compiler.is_compiling() and x.is_cuda:
        from vllm import _custom_ops

        rounded, scales, _ = _custom_ops.scaled_int8_quant(x.contiguous())
        return rounded, scales
    return traced.round_tokens(x, False)


def round_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as FP8, for activations that `is_ours`."""
    return ops.round_tokens(x, True)
