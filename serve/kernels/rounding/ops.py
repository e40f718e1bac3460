"""The ops that round activations by token: quantline::round_tokens, and two with what is in front.

A layer is traced with round_tokens. The pass over a compiled graph (`fusing`) puts one of the other
two in place of it and of the RMSNorm or silu-and-multiply before it. On a GPU they are Triton
kernels of ours; on a CPU, plain PyTorch.

Inductor's own fusion reads a row three times for a norm, twice for silu, and stores the norm's
result in float32 in between: wider rows than 1,024 are looped over, not kept.
"""

from collections.abc import Callable
from typing import Any

import torch

from serve.kernels.define import define
from serve.kernels.rounding import launch, traced

SCHEMAS = {
    "round_tokens": "(Tensor x, bool floats) -> (Tensor, Tensor)",
    "silu_mul_round": "(Tensor x, Tensor? x_scales, bool floats) -> (Tensor, Tensor)",
    "add_norm_round": (
        "(Tensor x, Tensor? x_scales, Tensor residual, Tensor weight, float epsilon, bool floats)"
        " -> (Tensor, Tensor, Tensor)"
    ),
}
Two = tuple[torch.Tensor, torch.Tensor]
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def round_tokens(x: torch.Tensor, floats: bool) -> Two:
    """[tokens, K] as FP8 (`floats`) or INT8, and what it was divided by, [tokens, 1]."""
    rounded: Two = torch.ops.quantline.round_tokens(x, floats)
    return rounded


def with_rows(x: torch.Tensor) -> torch.Tensor:
    """x, with the numbers of a row side by side."""
    return x if x.stride(1) == 1 else x.contiguous()


def _round_on_gpu(x: torch.Tensor, floats: bool) -> Two:
    x = with_rows(x)
    codes, scales = launch.run(launch.round_launch(x, floats, like=x), x.device)
    return codes, scales


def _silu_on_gpu(x: torch.Tensor, x_scales: torch.Tensor | None, floats: bool) -> Two:
    x = with_rows(x)
    described = launch.silu_mul_round_launch(x, x_scales, floats, like=x)
    codes, scales = launch.run(described, x.device)
    return codes, scales


def _norm_on_gpu(
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    floats: bool,
) -> Three:
    x, residual = with_rows(x), with_rows(residual)
    described = launch.add_norm_round_launch(
        x, x_scales, residual, weight, epsilon, floats, like=x, residual_stride=residual.stride(0)
    )
    codes, scales, total = launch.run(described, x.device)
    return codes, scales, total


def _empty(x: torch.Tensor, columns: Any, floats: bool) -> Two:
    codes = x.new_empty((x.shape[0], columns), dtype=launch.code_type(floats))
    return codes, x.new_empty((x.shape[0], 1), dtype=torch.float32)


def _round_fake(x: torch.Tensor, floats: bool) -> Two:
    return _empty(x, x.shape[1], floats)


def _silu_fake(x: torch.Tensor, x_scales: torch.Tensor | None, floats: bool) -> Two:
    return _empty(x, x.shape[1] // 2, floats)


def _norm_fake(
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    floats: bool,
) -> Three:
    return (*_empty(x, x.shape[1], floats), x.new_empty(x.shape))


Body = Callable[..., Any]
BODIES: dict[str, tuple[Body, Body, Body]] = {
    "round_tokens": (_round_on_gpu, traced.round_tokens, _round_fake),
    "silu_mul_round": (_silu_on_gpu, traced.silu_mul_round, _silu_fake),
    "add_norm_round": (_norm_on_gpu, traced.add_norm_round, _norm_fake),
}
"""On a GPU, on a CPU, and what Inductor knows of the results."""


def register() -> None:
    """Defines the ops, once in a process. Kernels read rows: Inductor must not turn the inputs."""
    for name, bodies in BODIES.items():
        define(name, SCHEMAS[name], *bodies)
