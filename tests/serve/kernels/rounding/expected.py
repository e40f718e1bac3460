"""Rounding by token in float64, to compare kernels with."""

import torch


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


def add_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    total = x.double() + residual.double()
    return total * (total.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def scale_of(values: torch.Tensor, floats: bool) -> torch.Tensor:
    top = values.abs().amax(-1, keepdim=True)
    return (top / 448).clamp(min=1 / (448 * 512)) if floats else (top / 127).clamp(min=1e-10)


def codes_apart(
    codes: torch.Tensor, scales: torch.Tensor, values: torch.Tensor, floats: bool
) -> float:
    """The most codes that a result is away from the values (float64) before they are rounded: 0.5
    for INT8 rounded to the nearest. A code of FP8 is the distance of its neighbours there."""
    scaled = values / scale_of(values, floats)
    apart = (codes.double() - scaled).abs()
    if floats:
        power = torch.exp2(scaled.abs().clamp(min=2**-6).log2().floor())
        # Triton's interpreter loses the carry of numbers that are rounded up to a power of two: one
        # in 32. The others tell whether the kernel is right.
        apart = (apart / (power / 8)).flatten().quantile(0.95)
    by_scale = (scales.double() / scale_of(values, floats) - 1).abs().max()
    return float(apart.max()) if by_scale < 0.02 else float("inf")
