"""How rows are cut for the kernels that round them, and their launches.

Arguments of a kernel are prepared by one function, for a call from Python and for a compiled graph.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from serve.kernels.products.launch import power_of_two

SMALLEST_PART = 128
FEWEST_NUMBERS = 2048
"""Of a program: short rows are taken several at once."""
NUMBERS_OF_WARP = 512
MOST_WARPS = 16
MOST_COLUMNS = 32768
"""Of a row that registers can hold."""
TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Cut:
    """How programs share the rows."""

    rows: int
    part: int
    """Columns of a block."""
    parts: int
    warps: int

    @property
    def constants(self) -> dict[str, int]:
        return {"ROWS": self.rows, "PART": self.part, "PARTS": self.parts}


@cache
def cut_of(columns: int) -> Cut:
    """One block of columns or three, whichever fits more closely."""
    whole = max(SMALLEST_PART, power_of_two(columns))
    third = power_of_two(-(-columns // 3))
    part, parts = (third, 3) if third >= SMALLEST_PART and 3 * third < whole else (whole, 1)
    rows = max(1, FEWEST_NUMBERS // power_of_two(part * parts))
    warps = min(MOST_WARPS, max(1, power_of_two(rows * part * parts) // NUMBERS_OF_WARP))
    return Cut(rows, part, parts, warps)


def takes(x: torch.Tensor) -> bool:
    """Whether the kernels round such activations [tokens, K]."""
    return x.dim() == 2 and x.dtype in TYPES and 0 < x.shape[1] <= MOST_COLUMNS


@dataclass(frozen=True)
class Launch:
    """A kernel of triton_kernels.rounding with all of its arguments but the outputs."""

    kernel: str
    tensors: dict[str, Any]
    """Inputs by the name of their argument."""
    numbers: dict[str, Any]
    constants: dict[str, Any]
    outputs: tuple[tuple[str, tuple[Any, Any], torch.dtype], ...]
    """Argument, shape and type of each output, in the order of the op's results."""
    tokens: Any
    cut: Cut


def code_type(floats: bool) -> torch.dtype:
    return torch.float8_e4m3fn if floats else torch.int8


def round_launch(x: Any, floats: bool, *, like: torch.Tensor) -> Launch:
    """`like` has the shape, type and strides of x, which may be a node of a graph."""
    tokens, columns = like.shape
    return _launch(
        "round_kernel", {"x_ptr": x}, {"x_stride": like.stride(0)}, {}, tokens, columns, floats
    )


def silu_mul_round_launch(
    x: Any, x_scales: Any | None, floats: bool, *, like: torch.Tensor
) -> Launch:
    tokens, columns = like.shape[0], like.shape[1] // 2
    inputs = {"x_ptr": x, "x_scales_ptr": x if x_scales is None else x_scales}
    constants = {"SCALED": x_scales is not None}
    numbers = {"x_stride": like.stride(0)}
    return _launch("silu_mul_round_kernel", inputs, numbers, constants, tokens, columns, floats)


def add_norm_round_launch(
    x: Any,
    x_scales: Any | None,
    residual: Any,
    weight: Any,
    epsilon: float,
    floats: bool,
    *,
    like: torch.Tensor,
    residual_stride: Any,
) -> Launch:
    tokens, columns = like.shape
    inputs = {
        "x_ptr": x, "x_scales_ptr": x if x_scales is None else x_scales, "residual_ptr": residual,
        "weight_ptr": weight,
    }  # fmt: skip
    numbers = {"x_stride": like.stride(0), "residual_stride": residual_stride}
    constants = {"EPSILON": epsilon, "SCALED": x_scales is not None}
    further = (("sum_ptr", (tokens, columns), like.dtype),)
    return _launch(
        "add_norm_round_kernel", inputs, numbers, constants, tokens, columns, floats, further
    )


def _launch(
    kernel: str,
    tensors: dict[str, Any],
    numbers: dict[str, Any],
    constants: dict[str, Any],
    tokens: Any,
    columns: Any,
    floats: bool,
    further: tuple[tuple[str, tuple[Any, Any], torch.dtype], ...] = (),
) -> Launch:
    columns = int(columns)
    cut = cut_of(columns)
    outputs = (
        ("codes_ptr", (tokens, columns), code_type(floats)),
        ("scales_ptr", (tokens, 1), torch.float32),
        *further,
    )
    constants = {"K": columns, "FLOATS": floats, **constants, **cut.constants}
    return Launch(kernel, tensors, {"tokens": tokens, **numbers}, constants, outputs, tokens, cut)


def run(launch: Launch, device: torch.device) -> list[torch.Tensor]:
    """Launches the kernel; gives its outputs."""
    from serve.kernels.products.triton_kernels import rounding

    outputs = {
        name: torch.empty(shape, dtype=dtype, device=device)
        for name, shape, dtype in launch.outputs
    }
    programs = -(-launch.tokens // launch.cut.rows)
    if programs:
        getattr(rounding, launch.kernel)[(programs,)](
            **launch.tensors, **outputs, **launch.numbers, **launch.constants,
            num_warps=launch.cut.warps,
        )  # fmt: skip
    return list(outputs.values())
