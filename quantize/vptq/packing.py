"""Packs the numbers of codebook entries into words, and unpacks them."""

import torch

from conf.formats.base.tensors import WORD
from conf.formats.quant_args import Codebooks


def pack(main: torch.Tensor, residual: torch.Tensor | None, codebooks: Codebooks) -> torch.Tensor:
    """Words [..., words] of int32 for numbers [..., columns]: the main entry in the low bits of a
    number, the first number in the lowest bits of a row."""
    main_bits, total = codebooks.index_bits - codebooks.residual_bits, codebooks.index_bits
    numbers = main.to(torch.int64)
    if residual is not None:
        numbers = numbers | (residual.to(torch.int64) << main_bits)
    columns = numbers.shape[-1]
    words = -(-columns * total // WORD)
    starts = torch.arange(columns, device=numbers.device) * total
    place, shift = starts // WORD, starts % WORD
    packed = torch.zeros(*numbers.shape[:-1], words + 1, dtype=torch.int64, device=numbers.device)
    # A sum sets the bits, since no two numbers share one. A number of at most 32 bits reaches at
    # most one word further; its high part is shifted down in two parts, as 32 is too far for one.
    low = (numbers & ((1 << (WORD - shift)) - 1)) << shift
    high = (numbers >> 1) >> (WORD - 1 - shift)
    packed.index_add_(-1, place, low)
    packed.index_add_(-1, place + 1, high)
    unsigned = packed[..., :words]
    return torch.where(unsigned >= 1 << (WORD - 1), unsigned - (1 << WORD), unsigned).to(
        torch.int32
    )


def unpack(
    packed: torch.Tensor, codebooks: Codebooks, columns: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The numbers [..., columns] of the main entries, and those of the residual entries."""
    main_bits, total = codebooks.index_bits - codebooks.residual_bits, codebooks.index_bits
    words = packed.to(torch.int64) & ((1 << WORD) - 1)
    starts = torch.arange(columns, device=packed.device) * total
    place, shift = starts // WORD, starts % WORD
    following = words[..., (place + 1).clamp(max=words.shape[-1] - 1)]
    # Bits that a shift by 32 pushes out of the int64 are beyond the number, as are those of the
    # last word, which has none behind it.
    numbers = ((words[..., place] >> shift) | (following << (WORD - shift))) & ((1 << total) - 1)
    main = numbers & ((1 << main_bits) - 1)
    return main, numbers >> main_bits if codebooks.residual_entries else None
