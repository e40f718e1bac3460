"""Products of 1 to 16 tokens with packed INT4 or INT8 weights, which go straight into registers."""

from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.streamed_packed import NAME, Variant
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES, TILE
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
from serve.kernels.products.streamed.packed_layout import Packed, packed

# Each has 64 to 96 KiB of INT4 weights under way, and registers for that.
SHAPES: tuple[Shape, ...] = (
    (8, 1, 4, 3), (8, 1, 4, 2), (8, 1, 2, 4), (8, 2, 2, 2), (16, 1, 2, 2), (4, 1, 4, 5),
    (8, 2, 1, 3), (8, 1, 2, 3), (16, 2, 2, 1), (16, 1, 4, 1), (16, 1, 1, 2), (8, 2, 2, 1),
    (8, 4, 2, 1), (8, 4, 1, 2),
)  # fmt: skip
SHAPES_OF_16: tuple[Shape, ...] = (
    (8, 1, 4, 2), (8, 2, 2, 2), (8, 1, 2, 3), (16, 2, 2, 1), (16, 1, 4, 1), (16, 1, 1, 2),
    (8, 2, 2, 1), (8, 4, 2, 1),
)  # fmt: skip
"""For more than 8 tokens: with twice the sums, the compiler spills registers of the others, up to
600 bytes of a thread."""


@cache
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME)


def variant_of(weight: Packed, options: Options, tokens: int, dtype: torch.dtype) -> Variant:
    """The kernel. Steps under way are counted for INT4; those of INT8 have twice the bytes."""
    chosen = dict(options)
    scale_dtype = weight.row_scales.dtype if weight.groups_of_step else torch.bfloat16
    return Variant(
        warps=chosen["WARPS"], tiles=chosen["ROWS"] // TILE,
        prefetch=max(1, chosen["PREFETCH"] * 4 // weight.bits),
        resident=chosen["RESIDENT"], split=chosen["SPLIT"], bits=weight.bits,
        groups=weight.groups_of_step, zeros=weight.has_zeros,
        narrows=narrows_of(max(tokens, chosen["TOKENS"])), dtype=TYPES[dtype],
        scale_dtype=TYPES[scale_dtype],
    )  # fmt: skip


class StreamedPacked(Product):
    """INT4 or INT8 words, symmetric or with zero points, groups or channels."""

    name = "streamed_packed"
    most = 16
    compiles = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        shapes = SHAPES if tokens <= NARROW else SHAPES_OF_16
        return candidates(shapes, 4, rows, columns, tokens)

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_device(weight.codes.device)
        if not self.options(weight.rows, weight.columns, self.most):
            raise Unusable(f"{weight.columns} columns of 16 tokens exceed the shared memory")
        return packed(weight).tensors

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        weight, x = Packed(*tensors), aligned(inputs.plain)
        tokens, columns = x.shape
        rows, device = weight.rows, x.device.index or 0
        variant = variant_of(weight, options, tokens, x.dtype)
        launch = launch_of(variant, rows, columns, tokens, processors_of(device))
        if launch.shared_bytes > MOST_SHARED_BYTES:  # options of a plan for fewer tokens
            return self.multiply(inputs, tensors, self.options(rows, columns, tokens)[0])
        out = torch.empty((tokens, rows), dtype=x.dtype, device=x.device)
        kernel_of(variant, device).launch(
            launch.blocks, variant.warps * 32, launch.shared_bytes,
            (x, weight.codes, weight.groups, weight.row_scales, out),
            (tokens, x.stride(0), columns, rows, weight.codes.shape[0], steps_of(columns)),
            overlaps=bool(dict(options)["PDL"]),
        )  # fmt: skip
        return out
