"""2:4 products of 1 to 16 tokens with 8-bit weights and activations in 16 bit as they come.

Weights are streamed through registers into the sparse tensor cores: 10/16 of the bytes are read,
and activations need no rounding.
"""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import ClassVar

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.streamed_sparse import NAME, Variant
from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.launch import MULTIPROCESSORS, SHARED_MEMORY, options_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.sparse.lt import check_sparse
from serve.kernels.products.streamed.sparse_layout import COLUMNS, ROWS, pack, units_of

HALF_OF_TOKENS, MOST_TOKENS = 8, 16
ROWS_PACKED_AT_ONCE = 2048
CAPABILITY = (9, 0)
"""Clusters need it."""
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
RESERVED_BYTES = 1024
"""Shared memory of each block that the driver takes."""
MOST_SPLIT = 8
SHAPES = (
    *((8, 2, 3, True), (8, 3, 2, False), (8, 2, 2, False), (8, 3, 2, True), (8, 2, 4, True)),
    *((16, 1, 2, False), (16, 1, 4, True), (4, 4, 3, True), (16, 2, 1, False), (8, 1, 4, True)),
    *((4, 6, 2, False), (16, 1, 2, True), (8, 1, 4, False), (8, 4, 2, True), (8, 1, 3, True)),
    *((12, 1, 3, True), (4, 4, 2, False)),
)
"""Warps, blocks on a multiprocessor, units on their way for each warp, and whether these are in
shared memory; the best guess first. A unit is 2.5 KiB: 25 or more on a multiprocessor keep the
memory busy. Registers hold a unit with less work, but a warp waits for all of its loads at once:
the compiler has few counters of loads."""
SPLITS = (1, 2, 4)
MOST_OPTIONS, ALONE = 12, 4
"""Candidates, and how many of them are measured without overlapping the kernel in front, too."""
FALLBACK = Variant(4, MOST_TOKENS, 2, False, 1, 4, False, "bf16")
"""Needs little: where it does not fit, nothing does."""


@cache
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME)


@cache
def processors_of(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def fitting(wanted: Variant, tokens: int, units: int) -> Variant:
    """The variant with so few warps that each has a unit, and so many blocks in a cluster that the
    activations fit in shared memory. Raises Unusable where none does."""
    split = min(wanted.split, units)
    while split <= min(MOST_SPLIT, units):
        warps = wanted.warps
        while warps > units // split:
            warps //= 2
        variant = replace(wanted, warps=warps, split=split)
        if variant.shared_bytes(tokens, units) <= SHARED_MEMORY:
            return variant
        split *= 2
    raise Unusable(f"{tokens} tokens of {units * COLUMNS} columns do not fit in shared memory")


def resident_blocks(variant: Variant, tokens: int, units: int) -> int:
    """Blocks of a multiprocessor, as far as shared memory allows."""
    room = SHARED_MEMORY // (variant.shared_bytes(tokens, units) + RESERVED_BYTES)
    return max(1, min(variant.blocks, room))


def clusters_of(variant: Variant, tokens: int, units: int, rows: int, processors: int) -> int:
    """As many as run at once, at most one for each 16 rows."""
    resident = resident_blocks(variant, tokens, units)
    at_once = processors * resident // variant.split
    if 2 * resident % variant.split:
        # A cluster stays within 16 or 18 multiprocessors, which it may not fill. One that waits for
        # the end of another would double the time.
        at_once -= at_once // 16
    return max(1, min(rows // ROWS, at_once))


def candidates(rows: int, units: int, tokens: int) -> list[Variant]:
    """Variants that run as they are. Clusters come first where rows are too few for all blocks."""
    room = HALF_OF_TOKENS if tokens <= HALF_OF_TOKENS else MOST_TOKENS
    found = []
    for split, shape in product(SPLITS, SHAPES):
        warps, blocks, depth, is_ring = shape
        variant = Variant(warps, room, depth, is_ring, split, blocks, False, "bf16")
        fits = variant.shared_bytes(tokens, units) <= SHARED_MEMORY
        if fits and warps <= units // split and resident_blocks(variant, tokens, units) == blocks:
            found.append(variant)
    found.sort(key=lambda one: rows // ROWS * one.split < MULTIPROCESSORS)  # keeps the order else
    return found[:MOST_OPTIONS]


def options_from(variant: Variant, overlaps: bool = False) -> Options:
    """Without what a layer and its inputs decide. `overlaps`: the kernel may begin before the one
    in front of it has ended."""
    return options_of(
        PDL=int(overlaps),
        WARPS=variant.warps,
        BLOCKS=variant.blocks,
        DEPTH=variant.depth,
        RING=int(variant.is_ring),
        SPLIT=variant.split,
        TOKENS=variant.tokens,
    )


class StreamedSparse(Product):
    """One scale for each row."""

    most = 16
    compiles = True
    weight_dtype: ClassVar[torch.dtype]

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        units = units_of(columns)
        found = candidates(rows, units, tokens) or [fitting(FALLBACK, tokens, units)]
        return [options_from(variant, overlaps=True) for variant in found] + [
            options_from(variant) for variant in found[:ALONE]
        ]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        """The packed bytes, and float32 scales of the rows."""
        check_sparse(weight, self.weight_dtype)
        device = weight.codes.device
        if device.type != "cuda":
            raise Unusable("needs an NVIDIA GPU")
        if torch.cuda.get_device_capability(device) < CAPABILITY:
            raise Unusable("needs a GPU of compute capability 9.0 or higher")
        fitting(FALLBACK, self.most, units_of(weight.columns))
        packed = torch.cat([pack(part) for part in weight.codes.split(ROWS_PACKED_AT_ONCE)])
        return [packed, weight.scales.float().reshape(-1).expand(weight.rows).contiguous()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        packed, scales = tensors
        x = inputs.plain.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()  # the kernel reads 16 bytes at once
        (tokens, columns), device = x.shape, x.device.index or 0
        rows, units = packed.shape[0] * ROWS, packed.shape[1]
        variant = fitting(self.variant(options, tokens, x.dtype), tokens, units)
        clusters = clusters_of(variant, tokens, units, rows, processors_of(device))
        out = torch.empty((tokens, rows), dtype=x.dtype, device=x.device)
        kernel_of(variant, device).launch(
            clusters * variant.split, variant.warps * 32, variant.shared_bytes(tokens, units),
            (x, packed, scales, out), (tokens, columns, rows, units),
            overlaps=bool(dict(options)["PDL"]),
        )  # fmt: skip
        return out

    def variant(self, options: Options, tokens: int, dtype: torch.dtype) -> Variant:
        asked = dict(options)
        # A plan for fewer tokens must not lose any.
        room = asked["TOKENS"] if tokens <= asked["TOKENS"] else MOST_TOKENS
        return Variant(
            warps=asked["WARPS"], tokens=room, depth=asked["DEPTH"],
            is_ring=bool(asked["RING"]), split=asked["SPLIT"], blocks=asked["BLOCKS"],
            is_float=self.weight_dtype == FP8, dtype=TYPES[dtype],
        )  # fmt: skip


class StreamedSparseInt8(StreamedSparse):
    name = "streamed_sparse_int8"
    weight_dtype = torch.int8


class StreamedSparseFp8(StreamedSparse):
    name = "streamed_sparse_fp8"
    weight_dtype = FP8
