"""Rounding of activations by token, before the op: traced, so that Inductor fuses it with the norm
or activation function in front."""

import torch

LARGEST = 127.0
SMALLEST_SCALE = 1e-10  # a row of zeros


def round_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, K] as INT8, and what it was divided by, [tokens, 1]. Without torch.compile, by
    vLLM's kernel: as many kernels as operations would be slower."""
    if not torch.compiler.is_compiling() and x.is_cuda:
        from vllm import _custom_ops as ops

        rounded, scales, _ = ops.scaled_int8_quant(x.contiguous())
        return rounded, scales
    wide = x.float()
    scales = (wide.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    rounded = (wide * scales.reciprocal()).round().clamp(-LARGEST - 1, LARGEST)
    return rounded.to(torch.int8), scales
