"""Rounding by token in plain PyTorch, with the numbers of vLLM's own: what the ops compute on a
CPU, and what Inductor fuses for activations that our kernels do not take."""

import torch

Two = tuple[torch.Tensor, torch.Tensor]
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def round_tokens(x: torch.Tensor, floats: bool) -> Two:
    """[tokens, K] as FP8 (`floats`) or INT8, and what it was divided by, [tokens, 1]."""
    # Literals: a graph with dynamic shapes may take a module's floats as inputs.
    wide = x.float()
    top = wide.abs().amax(dim=-1, keepdim=True)
    if floats:
        scales = (top / 448.0).clamp(min=1.0 / (448.0 * 512.0))
        scaled = (wide * scales.reciprocal()).clamp(-448.0, 448.0)
        return scaled.to(torch.float8_e4m3fn), scales
    scales = (top / 127.0).clamp(min=1e-10)  # rows of zeros
    rounded = (wide * scales.reciprocal()).round().clamp(-128.0, 127.0)
    return rounded.to(torch.int8), scales


def silu_mul_round(x: torch.Tensor, x_scales: torch.Tensor | None, floats: bool) -> Two:
    """Of silu(gate) * up, where gates are the first half of the columns."""
    gate, up = _scaled(x, x_scales).float().chunk(2, dim=-1)
    return round_tokens((torch.nn.functional.silu(gate) * up).to(x.dtype), floats)


def add_norm_round(
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    floats: bool,
) -> Three:
    """Of the RMSNorm of x + residual, and that sum."""
    total = _scaled(x, x_scales).float() + residual.float()
    factor = (total.pow(2).mean(dim=-1, keepdim=True) + epsilon).rsqrt()
    codes, scales = round_tokens((total * factor * weight.float()).to(x.dtype), floats)
    return codes, scales, total.to(x.dtype)


def _scaled(x: torch.Tensor, x_scales: torch.Tensor | None) -> torch.Tensor:
    """x times the scales of its tokens, where a product left them to its caller."""
    return x if x_scales is None else (x.float() * x_scales).to(x.dtype)
