"""Products of 9 to 128 FP8 tokens with packed INT4 weights in groups of 128, on Hopper."""

import torch

from serve.kernels.products.cuda_kernels.streaming import STEP
from serve.kernels.products.cuda_kernels.warpgroup.variant import FP8 as FP8_NAME
from serve.kernels.products.cuda_kernels.warpgroup.variant import Numbers
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.streamed.cutting import TYPES
from serve.kernels.products.streamed.group_cutting import candidates, check_hopper, product_of
from serve.kernels.products.streamed.packed_layout import Packed, packed

FP8 = torch.float8_e4m3fn


class StreamedW4A8(Product):
    """Reads the same copy of the weights as `StreamedPacked`. Group scales stay as they are."""

    name = "streamed_w4a8"
    fewest = 9
    most = 128
    reads_rounded = True
    compiles = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return candidates(numbers_of(torch.bfloat16, torch.bfloat16), rows, columns, tokens)

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_hopper(weight.codes.device)
        check(weight)
        return packed(weight).tensors

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        if inputs.rounded is None:
            raise ValueError("streamed_w4a8 takes rounded activations")
        weight, dtype = Packed(*tensors), inputs.plain.dtype
        scales = None if inputs.scales is None else inputs.scales.contiguous()
        numbers = numbers_of(dtype, weight.row_scales.dtype)
        return product_of(numbers, options, aligned(inputs.rounded), weight, scales, dtype)


def numbers_of(dtype: torch.dtype, scale_dtype: torch.dtype) -> Numbers:
    return Numbers(FP8_NAME, TYPES[dtype], TYPES[scale_dtype])


def check(weight: Weight) -> None:
    """Raises Unusable where the kernel cannot read the weight."""
    if weight.bits != 4 or weight.zeros is not None:
        raise Unusable("takes symmetric 4-bit weights only")
    if weight.group_size != STEP:
        raise Unusable(f"takes groups of {STEP}, not {weight.group_size}")


def aligned(x: torch.Tensor) -> torch.Tensor:
    """FP8 activations whose rows the kernel can read 16 bytes at once."""
    if x.dtype != FP8:
        raise ValueError(f"takes FP8 activations, not {x.dtype}")
    if x.stride(1) != 1 or x.stride(0) % 16:
        x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x
