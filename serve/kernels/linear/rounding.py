"""Rounding of activations by token, before the op: traced, so that Inductor fuses it with the norm
or activation function in front."""

import torch


def round_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, K] as INT8, and what it was divided by, [tokens, 1]. Without torch.compile, by
    vLLM's kernel: as many kernels as operations would be slower."""
    if not torch.compiler.is_compiling() and x.is_cuda:
        from vllm import _custom_ops as ops

        rounded, scales, _ = ops.scaled_int8_quant(x.contiguous())
        return rounded, scales
    # Literals: a graph with dynamic shapes may take a module's floats as inputs.
    wide = x.float()
    scales = (wide.abs().amax(dim=-1, keepdim=True) / 127.0).clamp(min=1e-10)  # rows of zeros
    rounded = (wide * scales.reciprocal()).round().clamp(-128.0, 127.0)
    return rounded.to(torch.int8), scales
