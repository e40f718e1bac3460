"""Vector-quantized weights as the products of this package read them."""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.vptq_layout import (
    GROUPS,
    MOST_COPIES,
    ROOM,
    VectorWeight,
    arranged,
    check,
    in_columns,
    in_lanes,
    index_bits,
    packed,
    padded_book,
    swapped_steps,
    unpacked,
    unswapped,
    with_copies,
)

RESIDUAL_COPIES = (8, 4, 2, 1)
"""Copies of the residual codebook in shared memory, as many as fit."""
LEAST_TO_SPREAD = 1 << 25
"""Weights of a layer from which copies of main entries pay: 64 KiB of them take half a microsecond,
and leave no room for a block of the next kernel."""
ROOM_FOR_SUMS = 8 << 10
"""Shared memory that stays free of codebooks: the sums of 16 warps and 8 tokens."""
HALF_BYTES = 2
TENSORS = 7
"""Of one part of a weight; outlier columns have as many again."""


@dataclass(frozen=True)
class Part:
    """The prepared tensors of a weight, or of its outlier columns."""

    main: torch.Tensor
    """[entries, 8 / vector, vector]: see `padded_book`; maybe with copies of entries."""
    residual: torch.Tensor
    low: torch.Tensor
    """First 16 bits of the indices [rows of vectors, blocks, 32, 8]."""
    tail: torch.Tensor
    scales: torch.Tensor
    """[K], or empty where columns have neither scales nor biases."""
    biases: torch.Tensor
    swaps: torch.Tensor
    """[1] where indices tell which steps are swapped, else [0]."""

    @property
    def vector(self) -> int:
        return int(self.main.shape[2])

    @property
    def main_bits(self) -> int:
        return index_bits(int(self.main.shape[0]))

    @property
    def tail_bytes(self) -> int:
        return self.tail.element_size() if self.tail.numel() else 0

    def dense(self, first: int, last: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Some rows of vectors as weights [rows, columns]."""
        tail = self.tail[first:last] if self.tail_bytes else self.tail
        lanes = unpacked(self.low[first:last], tail)
        both = in_columns(unswapped(lanes) if self.swaps.numel() else lanes, columns)
        weights = self.main[:, 0][both & ((1 << self.main_bits) - 1)].to(dtype)
        if self.residual.numel():
            weights = weights + self.residual[:, 0][both >> self.main_bits].to(dtype)
        weights = weights.transpose(1, 2).reshape(-1, columns)
        if self.scales.numel():
            weights = weights * self.scales.to(dtype) + self.biases.to(dtype)
        return weights


class VectorProduct(Product):
    """A product that writes where it is told to: vLLM merges layers, and each of the merged ones
    has codebooks of its own."""

    @abstractmethod
    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        """Writes the product into `out` [tokens, N], whose rows may lie apart."""

    def outputs(self, tensors: list[torch.Tensor]) -> int:
        """N, with the rows that fill the last vector."""
        part = parts_of(tensors)[0]
        return int(part.low.shape[0]) * part.vector

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        x = inputs.plain
        out = torch.empty((x.shape[0], self.outputs(tensors)), dtype=x.dtype, device=x.device)
        self.write(x, tensors, options, out)
        return out


def parts_of(tensors: list[torch.Tensor]) -> list[Part]:
    """The weight, and its outlier columns where it has some."""
    return [Part(*tensors[at : at + TENSORS]) for at in range(0, len(tensors), TENSORS)]


def extra_entries(entries: int, residuals: int, bits: int, shared_bytes: int) -> int:
    """Copies of main entries that shared memory holds, and that indices reach without more bytes
    than their bits take now."""
    books = (entries + residuals * RESIDUAL_COPIES[0]) * ROOM * HALF_BYTES
    room = (shared_bytes - ROOM_FOR_SUMS - books) // (ROOM * HALF_BYTES)
    reach = entries << (capacity(bits) - bits)
    extra = min(room, (MOST_COPIES - 1) * entries, reach - entries)
    return 0 if entries % GROUPS else max(0, extra // GROUPS * GROUPS)


def capacity(bits: int) -> int:
    """Bits of the 2 to 4 bytes that hold an index of so many bits."""
    return max(16, -(-bits // 8) * 8)


def prepared(
    weight: Weight, shared_bytes: int = 0, always_scales: bool = False
) -> list[torch.Tensor]:
    """The tensors of a weight. With so many bytes of shared memory, look-ups are arranged for its
    banks; where the layer is large, main entries are copied until it is full. Outlier columns
    always have scales, which tell how many they are."""
    if not isinstance(weight, VectorWeight):
        raise Unusable("takes vector-quantized weights only")
    if weight.joined:
        raise Unusable("takes one layer at a time")
    check(weight)
    main, codes = weight.book, in_lanes(weight.codes.long())
    entries = int(main.shape[0])
    residuals = 0 if weight.residual is None else int(weight.residual.shape[0])
    bits = index_bits(entries) + (index_bits(residuals) if residuals else 0)
    swaps = int(shared_bytes > 0 and bits < capacity(bits))
    if swaps:
        large = weight.rows * weight.columns >= LEAST_TO_SPREAD
        extra = extra_entries(entries, residuals, bits + swaps, shared_bytes) if large else 0
        main = with_copies(main, extra)
        codes, swapped = arranged(codes, entries, extra)
    shift = index_bits(int(main.shape[0]))
    if weight.residual_codes is not None:
        further_codes = in_lanes(weight.residual_codes.long())
        if swaps:
            further_codes = swapped_steps(further_codes, swapped)
        codes = codes | further_codes << shift
    if swaps:
        codes = codes << 1 | swapped
    bits += shift - index_bits(entries) + swaps
    low, tail = packed(codes, bits)
    nothing = torch.empty(0, dtype=main.dtype, device=main.device)
    scales = biases = nothing
    if always_scales or weight.has_scales or weight.biases is not None:
        given = weight.scales if weight.has_scales else torch.ones_like(weight.scales)
        scales = given.reshape(-1).to(main.dtype).contiguous()
        shifts = torch.zeros_like(scales) if weight.biases is None else weight.biases
        biases = shifts.reshape(-1).to(main.dtype).contiguous()
    residual = nothing if weight.residual is None else padded_book(weight.residual)
    tensors = [padded_book(main), residual, low, tail, scales, biases, nothing.new_empty(swaps)]
    further = weight.outliers
    return tensors + ([] if further is None else prepared(further, always_scales=True))
