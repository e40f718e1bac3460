"""The order in which the kernel of `streamed_packed` reads packed integers: its fragments.

A tile has 16 rows and a step 128 columns: eight products of 16 columns. The columns of a product
are chosen so that a lane's activations lie side by side. Product 2 c + j takes, of the columns 32 c
to 32 c + 31, those with 8 quad + 4 j + 2 high + odd, where `quad` is the lane's number in its group
of four, `high` says which half of the fragment's columns, and `odd` which half of a register.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from serve.kernels.products.cuda_kernels.streaming import STEP, TILE
from serve.kernels.products.product import Unusable, Weight
from serve.kernels.products.streamed.cutting import steps_of
from serve.kernels.products.unpack import check_packed

LANES = 32
WORD = 32  # bits
GROUP_SIZES = (32, 64, 128)
SIXTEEN_BIT = (torch.bfloat16, torch.float16)
TILES_AT_ONCE = 128
SMALLEST_COLUMNS = 8
"""Columns come in such multiples: activations are read 16 bytes at a time."""


@dataclass(frozen=True)
class Packed:
    """A weight as the kernel reads it."""

    codes: torch.Tensor
    """Words [tiles, steps, bits / 2, 32 lanes, 4]."""
    groups: torch.Tensor
    """Scales of groups, as words of two rows, the second of them 8 below the first: [tiles, steps,
    8 rows, 1, groups of a step]; with zero points behind them [..., 2, groups]. Empty for a scale
    for each row."""
    row_scales: torch.Tensor
    """Float32 [N, 1] for a scale for each row; else empty [N, 0], of the type of the scales."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.codes, self.groups, self.row_scales]

    @property
    def rows(self) -> int:
        return int(self.row_scales.shape[0])

    @property
    def bits(self) -> int:
        return int(self.codes.shape[2]) * 2

    @property
    def has_zeros(self) -> bool:
        return self.groups.dim() > 1 and int(self.groups.shape[3]) == 2

    @property
    def groups_of_step(self) -> int:
        return int(self.groups.shape[4]) if self.groups.dim() > 1 else 0


_LAST: list[tuple[weakref.ref[Weight], list[weakref.ref[torch.Tensor]]]] = []
"""The last weight that was packed, and its tensors. It keeps none of them alive."""


def packed(weight: Weight) -> Packed:
    """Packs a weight. Raises Unusable with the reason. Products that read this layout get the same
    tensors for the same weight, as long as one of them holds them."""
    check(weight)
    for last, references in _LAST:
        tensors = [tensor for reference in references if (tensor := reference()) is not None]
        if last() is weight and len(tensors) == len(references):
            return Packed(*tensors)
    made = _packed(weight)
    _LAST[:] = [(weakref.ref(weight), [weakref.ref(tensor) for tensor in made.tensors])]
    return made


def _packed(weight: Weight) -> Packed:
    codes = torch.cat([_in_lanes(part, weight) for part in _parts(weight.codes)])
    device = weight.codes.device
    if weight.group_size is None and weight.zeros is None:
        scales = weight.scales.float().reshape(-1, 1).expand(weight.rows, 1).contiguous()
        return Packed(codes, torch.empty(0, dtype=torch.int32, device=device), scales)
    groups = [_pairs(weight.scales.view(torch.int16), weight)]
    if weight.zeros is not None:
        groups.append(_pairs(weight.zeros.to(torch.int16), weight))
    none = torch.empty((weight.rows, 0), dtype=weight.scales.dtype, device=device)
    return Packed(codes, torch.stack(groups, dim=3).contiguous(), none)


def check(weight: Weight) -> None:
    """Raises Unusable where the kernel cannot read the weight."""
    check_packed(weight, (4, 8))
    if weight.columns % SMALLEST_COLUMNS:
        raise Unusable(f"{weight.columns} columns are no multiple of {SMALLEST_COLUMNS}")
    if weight.group_size not in (None, *GROUP_SIZES):
        raise Unusable(f"takes no groups of {weight.group_size}")
    if weight.group_size is not None and weight.columns % weight.group_size:
        raise Unusable(f"{weight.columns} columns are no multiple of {weight.group_size}")
    has_groups = weight.group_size is not None or weight.zeros is not None
    if has_groups and weight.scales.dtype not in SIXTEEN_BIT:
        raise Unusable(f"takes 16-bit scales of groups, not {weight.scales.dtype}")
    if weight.zeros is not None:
        lowest, highest = weight.zeros.aminmax()
        if int(lowest) < 0 or int(highest) >= 1 << weight.bits:
            raise Unusable(f"takes zero points of {weight.bits} bits")


def _parts(codes: torch.Tensor) -> Iterator[torch.Tensor]:
    """Some tiles at a time: unpacked codes take eight times the memory of INT4 words."""
    return iter(codes.split(TILES_AT_ONCE * TILE))


def _padded(values: torch.Tensor, columns: int) -> torch.Tensor:
    """With zeros up to whole tiles of rows, and so many columns."""
    rows = -values.shape[0] % TILE
    return torch.nn.functional.pad(values, (0, columns - values.shape[1], 0, rows))


def _in_lanes(words: torch.Tensor, weight: Weight) -> torch.Tensor:
    """The words of some rows in the order of fragments."""
    bits, steps = weight.bits, steps_of(weight.columns)
    shifts = torch.arange(0, WORD, bits, device=words.device, dtype=torch.int32)
    codes = ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(1)
    codes = _padded(codes, steps * STEP)
    # low, row, step, c, quad, j, high, odd; `low` says which of a fragment's two rows.
    places = codes.view(-1, 2, 8, steps, 4, 4, 2, 2, 2)
    if bits == 4:  # register high * 2 + low: bits 4 times that on, and 16 further for odd columns
        ordered = places.permute(0, 3, 4, 6, 2, 5, 8, 7, 1)  # tile step c j row quad odd high low
    else:  # a word for each `high`: byte low for even columns, 2 + low for odd ones
        ordered = places.permute(0, 3, 4, 6, 7, 2, 5, 8, 1)  # tile step c j high row quad odd low
    values = ordered.reshape(-1, steps, bits // 2, 4, LANES, WORD // bits)
    lanes = joined(values, bits)
    return lanes.transpose(3, 4).contiguous()


def joined(values: torch.Tensor, bits: int) -> torch.Tensor:
    """The last dimension as words, the first value in the lowest bits."""
    words = torch.zeros(values.shape[:-1], dtype=torch.int32, device=values.device)
    for place in range(values.shape[-1]):
        words |= values[..., place] << (place * bits)
    return words


def _pairs(groups: torch.Tensor, weight: Weight) -> torch.Tensor:
    """16-bit values [N, groups] as words [tiles, steps, 8, groups of a step]. A value for each row
    becomes one for each step."""
    steps = steps_of(weight.columns)
    if weight.group_size is None:
        groups, size = groups.expand(-1, steps), STEP
    else:
        size = weight.group_size
    values = _padded(groups.int() & 0xFFFF, steps * STEP // size)
    places = values.view(-1, 2, 8, steps, STEP // size)
    return joined(places.permute(0, 3, 2, 4, 1), WORD // 2)
