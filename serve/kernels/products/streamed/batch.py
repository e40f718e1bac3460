"""Products of 17 to 64 tokens of 16 bits with packed INT4 or INT8 weights, on Hopper."""

from dataclasses import replace
from itertools import zip_longest

import torch

from serve.kernels.products.cuda_kernels.streaming import STEP
from serve.kernels.products.cuda_kernels.warpgroup.variant import Numbers
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.streamed.cutting import TYPES, aligned
from serve.kernels.products.streamed.group_cutting import candidates, check_hopper, product_of
from serve.kernels.products.streamed.packed_layout import Packed, packed

MOST_TOKENS = 64
"""With more, Machete is faster."""
GROUP_SIZES = (None, 64, 128)
USUAL = (Numbers("bf16", "bf16", "bf16", bits=8), Numbers("bf16", "bf16", "bf16", bits=4))
"""For candidates, which are chosen before the weight is known."""
MOST_OPTIONS = 14


class StreamedBatch(Product):
    """Reads the same copy of the weights as `StreamedPacked`: INT4 or INT8 words, symmetric or with
    zero points, groups or channels."""

    name = "streamed_batch"
    fewest = 17
    most = MOST_TOKENS
    compiles = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        ordered = [candidates(numbers, rows, columns, tokens) for numbers in USUAL]
        mixed = [options for both in zip_longest(*ordered) for options in both if options]
        return list(dict.fromkeys(mixed))[:MOST_OPTIONS]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_hopper(weight.codes.device)
        check(weight)
        return packed(weight).tensors

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        weight, x = Packed(*tensors), aligned(inputs.plain)
        return product_of(numbers_of(weight, x.dtype), options, x, weight, None, x.dtype)


def numbers_of(weight: Packed, dtype: torch.dtype) -> Numbers:
    name, groups = TYPES[dtype], weight.groups_of_step
    if groups and weight.row_scales.dtype != dtype:
        raise Unusable(f"takes scales of {dtype}, not {weight.row_scales.dtype}")
    return Numbers(name, name, name, weight.bits, groups, weight.has_zeros)


def check(weight: Weight) -> None:
    """Raises Unusable where the kernel cannot read the weight."""
    if weight.group_size not in GROUP_SIZES:
        raise Unusable(f"takes no groups of {weight.group_size}")
    if weight.columns % STEP:
        raise Unusable(f"{weight.columns} columns are no multiple of {STEP}")
    has_groups = weight.group_size is not None or weight.zeros is not None
    groups = STEP // (weight.group_size or STEP) if has_groups else 0
    numbers = replace(USUAL[0], bits=weight.bits, groups=groups, zeros=weight.zeros is not None)
    if not candidates(numbers, weight.rows, weight.columns, MOST_TOKENS):
        raise Unusable(f"{weight.columns} columns exceed the shared memory")
