"""Products of many tokens with vectors of four weights: unpack some rows, multiply, go on."""

from collections.abc import Iterator
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Unusable, Weight
from serve.kernels.products.short_vectors.kernels import UNPACK_NAME, ShortVariant
from serve.kernels.products.short_vectors.layout import OUTPUTS, ShortWeight
from serve.kernels.products.short_vectors.product import ShortProduct
from serve.kernels.products.vptq import TYPES, limits_of
from serve.kernels.products.vptq_unpack import ALL_ROWS, ROWS_AT_ONCE

WARPS = 16
FEW = 256
"""Tokens up to which the weights' time counts most: so many rows as the L2 cache holds are unpacked
at a time, and read from there."""
WHOLE = options_of(ROWS=ALL_ROWS)


class ShortUnpack(ShortProduct):
    """Any number of tokens, in plain PyTorch, so that it also runs on a CPU."""

    name = "vptq_short_unpack"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [options_of(ROWS=count) for count in ROWS_AT_ONCE]

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        weight = ShortWeight(*tensors)
        for layer, first, count, here in pieces(weight, dict(options)["ROWS"]):
            last = first + -(-count // OUTPUTS)
            dense = weight.dense(layer, first, last, x.shape[1])[:count].to(x.dtype)
            torch.mm(x, dense.t(), out=out[:, here])


class ShortUnpackKernel(ShortProduct):
    """The same by a kernel of ours, on a GPU."""

    name = "vptq_short_unpack_kernel"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        sizes = (4096, 2048, 8192) if tokens <= FEW else (8192, 4096, ALL_ROWS)
        return [options_of(ROWS=count) for count in sizes if count < rows] or [WHOLE]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        if weight.codes.device.type != "cuda":
            raise Unusable("needs an NVIDIA GPU")
        return super().prepare(weight)

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        weight = ShortWeight(*tensors)
        if x.dtype != weight.books.dtype:
            raise Unusable(f"multiplies {weight.books.dtype}, not {x.dtype}")
        rows = dict(options)["ROWS"] or max(weight.rows)
        shape = (min(rows, max(weight.rows)), x.shape[1])
        scratch = torch.empty(shape, dtype=x.dtype, device=x.device)
        for layer, first, count, here in pieces(weight, rows):
            unpack_rows(weight, layer, first, scratch[:count])
            torch.mm(x, scratch[:count].t(), out=out[:, here])


def pieces(weight: ShortWeight, rows: int) -> Iterator[tuple[int, int, int, slice]]:
    """Up to so many rows at a time: layer, first tile in it, rows, and where they are among all
    outputs. Rows are a multiple of those of a tile, or all of a layer."""
    begin = 0
    for layer, count in enumerate(weight.rows):
        for first in range(0, count, rows):
            here = min(rows, count - first)
            yield layer, first // OUTPUTS, here, slice(begin + first, begin + first + here)
        begin += count


@cache
def kernel_of(variant: ShortVariant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.unpack_source(), UNPACK_NAME)


def unpack_rows(weight: ShortWeight, layer: int, first: int, out: torch.Tensor) -> None:
    """Writes some rows of a layer, from a tile on, as weights [rows, columns]."""
    rows, columns = out.shape
    device, dtype = out.device.index or 0, TYPES[out.dtype]
    variant = ShortVariant(
        WARPS, 1, weight.bits, weight.entries, weight.copies, weight.norm, dtype
    )  # fmt: skip
    tile = sum(weight.tiles[:layer]) + first
    scales = weight.scales[layer] if weight.norm else weight.scales
    biases = weight.biases[layer] if weight.norm else weight.biases
    units = -(-rows // OUTPUTS) * int(weight.codes.shape[1])
    kernel_of(variant, device).launch(
        min(-(-units // WARPS), limits_of(device)[1]), WARPS * 32, variant.book_bytes,
        (weight.codes[tile:], weight.books[layer], scales, biases, out),
        (columns, rows),
    )  # fmt: skip
