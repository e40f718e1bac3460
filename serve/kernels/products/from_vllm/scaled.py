"""vLLM's CUTLASS products of 8-bit weights and activations rounded by token."""

from functools import cache
from typing import Any, ClassVar, cast

import torch

from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight

STEP = 16  # CUTLASS takes rows and columns in multiples of it; vLLM runs others by Triton
FP8 = torch.float8_e4m3fn


@cache
def _operations() -> Any:
    """vLLM's, imported once: an import statement would look it up in every call."""
    from vllm import _custom_ops

    return _custom_ops


class CutlassScaled(Product):
    """Reads the weight as the checkpoint stores it, so it costs no memory of its own."""

    reads_rounded = True
    traceable = True
    weight_dtype: ClassVar[torch.dtype]

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        if weight.codes.dtype != self.weight_dtype:
            raise Unusable(f"weights are {weight.codes.dtype}, not {self.weight_dtype}")
        if weight.group_size is not None or weight.zeros is not None:
            raise Unusable("takes one scale for each row and no zero points")
        if weight.rows % STEP or weight.columns % STEP:
            raise Unusable(f"{weight.rows} x {weight.columns} is no multiple of {STEP}")
        scales = weight.scales.float().reshape(-1, 1).expand(weight.rows, 1).contiguous()
        return [weight.codes.contiguous(), scales, torch.ones_like(scales[:1, 0])]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        codes, row_scales, one = tensors
        rounded, token_scales = rounded_of(inputs, self.weight_dtype)
        if token_scales is None:
            token_scales = one
        product: torch.Tensor = _operations().cutlass_scaled_mm(
            rounded, codes.t(), token_scales, row_scales, inputs.plain.dtype
        )
        return product

    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> torch.Tensor:
        """vLLM's op writes into a tensor that it is given, which a graph must not show."""
        from torch._higher_order_ops.auto_functionalize import auto_functionalized

        codes, row_scales, one = tensors
        rounded, dtype = inputs.rounded, inputs.plain.dtype
        assert rounded is not None
        _, product = auto_functionalized(
            torch.ops._C.cutlass_scaled_mm.default,
            out=rounded.new_empty((rounded.shape[0], codes.shape[0]), dtype=dtype),
            a=rounded,
            b=codes.t(),
            a_scales=one if inputs.scales is None else inputs.scales,
            b_scales=row_scales,
            bias=None,
        )
        return cast(torch.Tensor, product)


class CutlassInt8(CutlassScaled):
    name = "cutlass_int8"
    weight_dtype = torch.int8


class CutlassFp8(CutlassScaled):
    name = "cutlass_fp8"
    weight_dtype = FP8


def rounded_of(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The rounded activations and their scales, which may be left to the caller; by vLLM's kernel
    where a layer passes only plain ones."""
    if inputs.rounded is not None:
        return inputs.rounded, inputs.scales
    ops = _operations()
    plain = inputs.plain.contiguous()
    if dtype == torch.int8:
        rounded, scales, _ = ops.scaled_int8_quant(plain)
    else:
        rounded, scales = ops.scaled_fp8_quant(plain, use_per_token_if_dynamic=True)
    return rounded, scales
