"""Products of few tokens with vectors of four weights in one codebook."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Unusable, Weight
from serve.kernels.products.short_vectors.kernels import (
    NAME,
    TOKENS_OF_FRAGMENT,
    ShortVariant,
)
from serve.kernels.products.short_vectors.layout import (
    COLUMNS,
    MOST_LAYERS,
    ShortWeight,
    check_short,
    prepared,
)
from serve.kernels.products.vptq import BLOCK_RESERVED, MOST_TOKENS, TYPES, can_overlap, limits_of
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.products.vptq_prepared import VectorProduct

LAUNCHES = ((16, 16, 2), (16, 16, 1), (8, 8, 2), (16, 8, 2), (16, 4, 2), (16, 8, 1), (8, 4, 2))
"""Warps of a block, warps that share a tile, blocks that registers have room for: best guess
first."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched."""

    variant: ShortVariant
    blocks: list[int]
    """Of each layer."""
    share: int
    """Warps that take a tile together."""
    staged: int
    """Columns whose activations are in shared memory at a time."""


class ShortProduct(VectorProduct):
    """A product that reads the tensors of `layout.prepared`, for layers that share their input."""

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        joined = weight.joined if isinstance(weight, VectorWeight) else ()
        return prepared([weight, *joined])

    def outputs(self, tensors: list[torch.Tensor]) -> int:
        return sum(ShortWeight(*tensors).rows)


class ShortFewTokens(ShortProduct):
    """1 to 16 tokens: codebooks in shared memory, tensor cores."""

    name = "vptq_short_few_tokens"
    most = MOST_TOKENS

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        found = []
        for warps, share, resident in LAUNCHES:
            most = warps if tokens <= TOKENS_OF_FRAGMENT else min(8, warps)
            if resident == 1 or warps <= most:
                found.append(options_of(PDL=1, RESIDENT=resident, SHARE=share, WARPS=warps))
        return [*found, options_of(**{**dict(found[0]), "PDL": 0})]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_short(weight)
        device = weight.codes.device
        if device.type != "cuda":
            raise Unusable("needs an NVIDIA GPU")
        if torch.cuda.get_device_capability(device) < (8, 0):
            raise Unusable("needs a GPU of compute capability 8.0 or higher")
        tensors = super().prepare(weight)
        options = self.options(0, weight.columns, self.most)[0]
        most_bytes, processors = limits_of(device.index or 0)
        launch_of(ShortWeight(*tensors), self.most, weight.columns, options, most_bytes, processors)
        return tensors

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        weight = ShortWeight(*tensors)
        if x.dtype != weight.books.dtype:
            result = torch.empty_like(out, dtype=weight.books.dtype)
            self.write(x.to(weight.books.dtype), tensors, options, result)
            out.copy_(result)
            return
        if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
            x = x.contiguous()  # the kernel reads 16 bytes at once
        few_tokens(x, weight, options, out)


class ShortChunks(ShortFewTokens):
    """Some more tokens, 16 at a time: faster than unpacking until that pays."""

    name = "vptq_short_chunks"
    fewest, most = MOST_TOKENS + 1, 128

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return FEW.prepare(weight)

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return super().options(rows, columns, MOST_TOKENS)

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        for first in range(0, x.shape[0], MOST_TOKENS):
            here = slice(first, first + MOST_TOKENS)
            super().write(x[here], tensors, options, out[here])


FEW = ShortFewTokens()


@cache
def kernel_of(variant: ShortVariant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    kernel = Kernel(variant.source(), NAME)
    kernel.prefer_shared_memory()
    return kernel


def blocks_of(tiles: Sequence[int], at_once: int, processors: int) -> list[int]:
    """Blocks for each layer, so that the one with the most work has least. A block has `at_once`
    tiles at a time."""
    units = [-(-count // at_once) for count in tiles]
    rounds = 1
    while sum(-(-count // rounds) for count in units) > processors and rounds < max(units):
        rounds += 1
    return [-(-count // rounds) for count in units]


def staged_columns(
    variant: ShortVariant, tokens: int, columns: int, share: int, most_bytes: int
) -> int:
    """All columns, or as many as fit, in whole blocks for each warp if possible. Raises Unusable
    where none do."""
    whole = -(-columns // COLUMNS) * COLUMNS
    if variant.shared_bytes(tokens, whole) <= most_bytes:
        return whole
    for step in (COLUMNS * share, COLUMNS):
        free = most_bytes - variant.shared_bytes(tokens, 0)
        staged = free // (tokens * 2) // step * step
        if staged > 0:
            return staged
    raise Unusable(f"{variant.warps} warps need more than {most_bytes} bytes of shared memory")


def launch_of(
    weight: ShortWeight,
    tokens: int,
    columns: int,
    options: Options,
    most_bytes: int,
    processors: int,
) -> Launch:
    chosen, blocks = dict(options), int(weight.codes.shape[1])
    warps, share = chosen["WARPS"], min(chosen["SHARE"], chosen["WARPS"])
    while share > blocks:
        share //= 2
    fragments = next(count for count in (1, 2, 4) if tokens <= count * TOKENS_OF_FRAGMENT)
    dtype = TYPES[weight.books.dtype]
    resident = chosen["RESIDENT"] if fragments == 1 or warps <= 8 else 1
    variant = ShortVariant(
        warps, fragments, weight.bits, weight.entries, weight.copies, weight.norm, dtype, resident
    )
    staged = staged_columns(variant, tokens, columns, share, most_bytes)
    needed = 2 * (variant.shared_bytes(tokens, staged) + BLOCK_RESERVED)
    if resident == 2 and needed > most_bytes + BLOCK_RESERVED:
        variant = ShortVariant(
            warps, fragments, weight.bits, weight.entries, weight.copies, weight.norm, dtype
        )
    return Launch(variant, blocks_of(weight.tiles, warps // share, processors), share, staged)


def few_tokens(x: torch.Tensor, weight: ShortWeight, options: Options, out: torch.Tensor) -> None:
    """Writes [tokens, N] for all layers, one beside the other."""
    device, (tokens, columns) = x.device.index or 0, x.shape
    launch = launch_of(weight, tokens, columns, options, *limits_of(device))
    rows = [*weight.rows, 0, 0][:MOST_LAYERS]
    first_blocks = [*launch.blocks, 0][:2]
    kernel_of(launch.variant, device).launch(
        sum(launch.blocks), launch.variant.warps * 32,
        launch.variant.shared_bytes(tokens, launch.staged),
        (x, weight.codes, weight.books, weight.scales, weight.biases, out),
        (tokens, x.stride(0), columns, *rows, *first_blocks, launch.share, launch.staged,
         out.stride(0)),
        overlaps=bool(dict(options)["PDL"]) and can_overlap(device),
    )  # fmt: skip
