"""The stored layout of 2:4 weights for products of few tokens: 10/16 of the dense bytes.

Four columns of a row are a group: two values, and a mask of four bits that says in which columns
they are. A block is 512 columns (256 where 512 does not divide them), which are two halves of 64
groups. It is stored in one piece, so that a product reads long runs of bytes:

    first values of half 0, second values of half 0, the same of half 1, masks

A byte of the masks belongs to a group of half 0 (low four bits) and one of half 1 (high bits).
"""

import torch

from serve.kernels.products.product import Unusable

BLOCKS = (512, 256)
PIECES = 5
"""Of a block: two of values for each half, one of masks."""


def columns_of_block(columns: int) -> int:
    for block in BLOCKS:
        if columns % block == 0:
            return block
    raise Unusable(f"{columns} columns are no multiple of {BLOCKS[-1]}")


def kept_values(fours: torch.Tensor, is_float: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Two values of each four [..., 4], and their places in it, which ascend. They hold every value
    that is not zero; where there are fewer, zeros fill the places. -0.0 is zero."""
    used = (fours & 0x7F if is_float else fours) != 0
    # Sorted by "is zero", columns stay in order: the first two hold every value.
    places = (~used).to(torch.int8).sort(dim=-1, stable=True).indices[..., :2].sort(dim=-1).values
    return fours.gather(-1, places), places


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Bytes [N, K * 5 / 8] of 8-bit codes [N, K] with at most two of four that are not zero."""
    rows, columns = codes.shape
    groups = columns_of_block(columns) // 8
    values = codes.contiguous().view(torch.int8).view(rows, -1, 2, groups, 4)
    kept, places = kept_values(values, codes.is_floating_point())
    masks = (1 << places).sum(-1)
    both = (masks[:, :, 0] | (masks[:, :, 1] << 4)).to(torch.uint8).view(torch.int8)
    pieces = [kept[:, :, half, :, which] for half in (0, 1) for which in (0, 1)]
    return torch.stack([*pieces, both], dim=2).reshape(rows, -1)


def unpack(packed: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The dense codes [N, K] again."""
    rows, groups = packed.shape[0], columns_of_block(columns) // 8
    pieces = packed.view(rows, -1, PIECES, groups)
    masks = pieces[:, :, 4].view(torch.uint8).to(torch.int32)
    dense = torch.zeros(
        (rows, pieces.shape[1], 2, groups, 4), dtype=torch.int8, device=packed.device
    )
    for half in (0, 1):
        first, second = pieces[:, :, 2 * half], pieces[:, :, 2 * half + 1]
        seen = torch.zeros_like(masks)
        for column in range(4):
            here = (masks >> (4 * half + column)) & 1
            value = torch.where(seen == 0, first, second)
            dense[:, :, half, :, column] = torch.where(here == 1, value, torch.zeros_like(value))
            seen += here
    return dense.view(rows, columns).view(dtype)
