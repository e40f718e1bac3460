"""Runs the kernels that round in Triton's interpreter, and prints how many codes they are away from
float64. A process of its own: Triton decides when it is imported whether it interprets."""

import json

import torch

from serve.kernels.rounding.launch import (
    add_norm_round_launch,
    cut_of,
    round_launch,
    run,
    silu_mul_round_launch,
)
from tests.serve.kernels.rounding.expected import add_norm, codes_apart, silu_mul

WIDTHS = {"one part": 512, "three parts": 384, "masked": 330}
EPSILON = 1e-6
CPU = torch.device("cpu")


def say(name: str, error: float) -> None:
    print(json.dumps({"name": name, "error": error}), flush=True)


def made(tokens: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of different sizes, one of zeros; strides are those of a wider tensor."""
    x = torch.randn(tokens, columns + 16) * torch.logspace(-1, 0.5, tokens)[:, None]
    x[1] = 0
    return x.to(dtype)[:, :columns]


def rounding(kind: str, columns: int, dtype: torch.dtype, floats: bool) -> None:
    x = made(7, columns, dtype)
    codes, scales = run(round_launch(x, floats, like=x), CPU)
    say(f"round {kind}", codes_apart(codes, scales, x.double(), floats))


def with_silu(kind: str, columns: int, dtype: torch.dtype, floats: bool) -> None:
    x, by = made(7, 2 * columns, dtype), torch.rand(7, 1) + 0.5
    codes, scales = run(silu_mul_round_launch(x, None, floats, like=x), CPU)
    say(f"silu {kind}", codes_apart(codes, scales, silu_mul(x), floats))
    codes, scales = run(silu_mul_round_launch(x, by, floats, like=x), CPU)
    say(f"silu scaled {kind}", codes_apart(codes, scales, silu_mul((x * by).to(dtype)), floats))


def with_norm(kind: str, columns: int, dtype: torch.dtype, floats: bool) -> None:
    x, residual, by = made(7, columns, dtype), made(7, columns, dtype), torch.rand(7, 1) + 0.5
    residual[1] = 0.5  # else the sum is zero
    weight = (torch.rand(columns) + 0.5).to(dtype)
    for name, scales_of_x in (("norm", None), ("norm scaled", by)):
        launch = add_norm_round_launch(
            x, scales_of_x, residual, weight, EPSILON, floats, like=x,
            residual_stride=residual.stride(0),
        )  # fmt: skip
        codes, scales, total = run(launch, CPU)
        scaled = x if scales_of_x is None else (x * by).to(dtype)
        right = add_norm(scaled, residual, weight, EPSILON)
        say(f"{name} {kind}", codes_apart(codes, scales, right, floats))
        wrong = (total.double() - scaled.double() - residual.double()).abs()
        largest = (scaled.double().abs() + residual.double().abs()).amax()
        say(f"{name} sum {kind}", float((wrong / largest).max()))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for width, columns in WIDTHS.items():
        assert cut_of(columns).parts == (3 if width != "one part" else 1)
        for dtype in (torch.bfloat16, torch.float16):
            for floats in (False, True):
                kind = f"{'fp8' if floats else 'int8'} {str(dtype)[6:]} {width}"
                rounding(kind, columns, dtype, floats)
                with_silu(kind, columns, dtype, floats)
                with_norm(kind, columns, dtype, floats)
