"""Products of 1 to 16 tokens in 16 bit with INT8 or FP8 weights as they are stored: these go
straight into registers, and no second copy of them is needed."""

from functools import cache
from typing import ClassVar

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.streamed_dense import NAME, Variant
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES, TILE
from serve.kernels.products.few_tokens import FP8, check_rows
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.streamed.cutting import (
    NARROW,
    TYPES,
    Shape,
    aligned,
    candidates,
    check_device,
    launch_of,
    narrows_of,
    processors_of,
    steps_of,
)

SIXTEEN = 16
"""Columns come in such multiples, and weights begin at such an address: a load has 16 bytes."""
# Each has 64 to 128 KiB of weights under way, and registers for that without spills.
SHAPES: tuple[Shape, ...] = (
    (8, 1, 2, 3), (8, 1, 4, 2), (8, 1, 2, 2), (8, 1, 1, 4), (8, 2, 1, 2), (16, 1, 1, 2),
    (4, 1, 2, 5), (8, 2, 1, 3), (16, 2, 1, 1), (16, 1, 2, 1), (16, 1, 3, 1), (8, 2, 2, 1),
    (8, 4, 1, 1),
)  # fmt: skip
SHAPES_OF_16: tuple[Shape, ...] = (
    (8, 1, 2, 2), (8, 2, 1, 2), (16, 1, 2, 1), (16, 2, 1, 1), (8, 4, 1, 1), (8, 2, 2, 1),
    (8, 1, 4, 2), (16, 2, 2, 1),
)  # fmt: skip
"""For more than 8 tokens, which have twice the sums. Few blocks on a multiprocessor, as each reads
all activations of its columns."""


@cache
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME)


class StreamedDense(Product):
    """One scale for each row."""

    most = 16
    compiles = True
    weight_dtype: ClassVar[torch.dtype]

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        shapes = SHAPES if tokens <= NARROW else SHAPES_OF_16
        return candidates(shapes, 8, rows, columns, tokens)

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        """Weights as they are, and float32 scales of the rows."""
        check_rows(weight, self.weight_dtype, SIXTEEN)
        check_device(weight.codes.device)
        if not self.options(weight.rows, weight.columns, self.most):
            raise Unusable(f"{weight.columns} columns of 16 tokens exceed the shared memory")
        codes = weight.codes.contiguous()
        if codes.data_ptr() % SIXTEEN:
            raise Unusable("weights do not begin at a multiple of 16 bytes")
        return [codes, weight.scales.float().reshape(-1).expand(weight.rows).contiguous()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        (codes, scales), x = tensors, aligned(inputs.plain)
        (tokens, columns), rows, device = x.shape, codes.shape[0], x.device.index or 0
        variant = self.variant(options, tokens, x.dtype)
        launch = launch_of(variant, rows, columns, tokens, processors_of(device))
        if launch.shared_bytes > MOST_SHARED_BYTES:  # options of a plan for fewer tokens
            return self.multiply(inputs, tensors, self.options(rows, columns, tokens)[0])
        out = torch.empty((tokens, rows), dtype=x.dtype, device=x.device)
        kernel_of(variant, device).launch(
            launch.blocks, variant.warps * 32, launch.shared_bytes, (x, codes, scales, out),
            (tokens, x.stride(0), columns, rows, steps_of(columns)),
            overlaps=bool(dict(options)["PDL"]),
        )  # fmt: skip
        return out

    def variant(self, options: Options, tokens: int, dtype: torch.dtype) -> Variant:
        chosen = dict(options)
        return Variant(
            warps=chosen["WARPS"], tiles=chosen["ROWS"] // TILE, prefetch=chosen["PREFETCH"],
            resident=chosen["RESIDENT"], split=chosen["SPLIT"],
            is_float=self.weight_dtype == FP8,
            narrows=narrows_of(max(tokens, chosen["TOKENS"])), dtype=TYPES[dtype],
        )  # fmt: skip


class StreamedInt8(StreamedDense):
    name = "streamed_int8"
    weight_dtype = torch.int8


class StreamedFp8(StreamedDense):
    name = "streamed_fp8"
    weight_dtype = FP8
