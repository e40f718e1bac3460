"""Weights and activations for tests of products, and the right results in float64."""

from dataclasses import replace

import torch

from serve.kernels.products.product import Inputs, Weight


def codes_of(dtype: torch.dtype, rows: int, columns: int) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    return (torch.randn(rows, columns) * 8).to(dtype)


def pruned(codes: torch.Tensor) -> torch.Tensor:
    """At most two of four neighbours are not zero; in some fours only one is."""
    fours = codes.view(torch.int8).view(-1, 4)
    kept = torch.where(torch.rand(len(fours), 1) < 0.2, 1, 2)
    order = torch.rand(fours.shape).argsort(-1)
    return (fours * (order < kept).to(torch.int8)).view(codes.shape).view(codes.dtype)


def weight_of(dtype: torch.dtype, rows: int, columns: int, sparse: bool = False) -> Weight:
    codes = codes_of(dtype, rows, columns)
    scales = torch.rand(rows, 1) * 0.01 + 0.001
    return Weight(pruned(codes) if sparse else codes, scales, 8, columns, sparse=sparse)


def inputs_of(weight: Weight, tokens: int) -> Inputs:
    """Plain and rounded activations that have nothing to do with each other."""
    plain = torch.randn(tokens, weight.columns).half()
    rounded = codes_of(weight.codes.dtype, tokens, weight.columns)
    return Inputs(plain, rounded, torch.rand(tokens, 1) * 0.001 + 0.0001)


def dense_of(weight: Weight, inputs: Inputs, reads_rounded: bool) -> torch.Tensor:
    """The right product."""
    x = inputs.plain.double()
    if reads_rounded:
        assert inputs.rounded is not None
        assert inputs.scales is not None
        x = inputs.rounded.double() * inputs.scales.double()
    return x @ (weight.codes.double() * weight.scales.double()).t()


def packed_weight(
    rows: int, columns: int, bits: int, group_size: int | None, has_zeros: bool
) -> tuple[Weight, torch.Tensor]:
    """Packed integers, and what they stand for."""
    half, width = 1 << (bits - 1), group_size or columns
    values = torch.randint(-half, half, (rows, columns))
    scales = (torch.rand(rows, columns // width) * 0.01 + 0.001).half()
    zeros = torch.randint(0, 2 * half, scales.shape) if has_zeros else None
    shifts = torch.arange(0, 32, bits)
    words = ((values + half).view(rows, -1, 32 // bits) << shifts).sum(-1)
    codes = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    points = torch.full(scales.shape, half) if zeros is None else zeros
    right = (values + half - points.repeat_interleave(width, 1)).double()
    right *= scales.double().repeat_interleave(width, 1)
    return Weight(codes, scales, bits, columns, zeros, group_size), right


def on_gpu(weight: Weight) -> Weight:
    zeros = None if weight.zeros is None else weight.zeros.cuda()
    return replace(weight, codes=weight.codes.cuda(), scales=weight.scales.cuda(), zeros=zeros)


def error_of(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative to the size of the right result."""
    return float((found.double() - right.double()).norm() / right.double().norm())
