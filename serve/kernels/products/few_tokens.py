"""Products of few tokens with 8-bit weights through the tensor cores: up to 64 that are rounded, up
to 16 in 16 bit."""

import math
from typing import ClassVar

import torch

from serve.kernels.products.launch import candidates, counters, launch_arguments
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight

SMALLEST_COLUMNS = 64
FP8 = torch.float8_e4m3fn
INTEGERS, FLOATS, WIDENED = 0, 1, 2  # as in triton_kernels.few_tokens


def check_rows(weight: Weight, dtype: torch.dtype, columns: int) -> None:
    """Raises Unusable unless weights have that type, one scale for each row, and a multiple of so
    many columns."""
    if weight.codes.dtype != dtype:
        raise Unusable(f"weights are {weight.codes.dtype}, not {dtype}")
    if weight.group_size is not None or weight.zeros is not None:
        raise Unusable("takes one scale for each row and no zero points")
    if weight.columns % columns:
        raise Unusable(f"{weight.columns} columns are no multiple of {columns}")


def prepared(weight: Weight, dtype: torch.dtype) -> list[torch.Tensor]:
    """Weights as they are, float32 scales of the rows, and counters."""
    check_rows(weight, dtype, SMALLEST_COLUMNS)
    codes = weight.codes.contiguous()
    scales = weight.scales.float().reshape(-1).expand(weight.rows).contiguous()
    return [codes, scales, counters(weight.rows, codes.device)]


class FewTokens(Product):
    """What the tensor cores' products share."""

    most = 16
    compiles = True
    kind: ClassVar[int]
    weight_dtype: ClassVar[torch.dtype]

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return candidates(rows, columns, tokens, token_bytes=1 if self.reads_rounded else 2)

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return prepared(weight, self.weight_dtype)

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from serve.kernels.products.triton_kernels.few_tokens import few_tokens_kernel

        weights, scales, counter = tensors
        rows, columns = weights.shape
        x = inputs.rounded if self.reads_rounded else inputs.plain
        assert x is not None
        x = x.contiguous()
        arguments = launch_arguments(options, x.shape[0])
        split, block = arguments["SPLIT"], arguments["BLOCK_N"]
        blocks = math.ceil(rows / block)
        token_scales = inputs.scales if self.reads_rounded else None
        out = torch.empty((x.shape[0], rows), dtype=inputs.plain.dtype, device=x.device)
        size = blocks * block * arguments["TOKENS"] * split if split > 1 else 1
        sums = torch.int32 if self.kind == INTEGERS else torch.float32
        parts = torch.empty(size, dtype=sums, device=x.device)
        few_tokens_kernel[(blocks, split)](
            x, scales if token_scales is None else token_scales, weights, scales, out, parts,
            counter, x.shape[0], rows, columns, self.kind, token_scales is not None,
            rows % block == 0, **arguments,
        )  # fmt: skip
        return out


class FewTokensInt8(FewTokens):
    """INT8 weights and activations: exact sums."""

    name = "few_tokens_int8"
    most = 64
    reads_rounded = True
    kind = INTEGERS
    weight_dtype = torch.int8


class FewTokensFp8(FewTokens):
    """FP8 weights and activations."""

    name = "few_tokens_fp8"
    most = 64
    reads_rounded = True
    kind = FLOATS
    weight_dtype = FP8


class FewTokensFp8Plain(FewTokens):
    """FP8 weights, activations in 16 bit as they come."""

    name = "few_tokens_fp8_plain"
    kind = WIDENED
    weight_dtype = FP8


class FewTokensInt8Plain(FewTokens):
    """INT8 weights, activations in 16 bit as they come."""

    name = "few_tokens_int8_plain"
    kind = WIDENED
    weight_dtype = torch.int8
