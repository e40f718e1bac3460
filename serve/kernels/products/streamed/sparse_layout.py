"""The stored layout of 2:4 weights for `streamed_sparse`: 10/16 of the dense bytes.

The PTX manual ("Matrix fragments for sparse mma.m16n8k32 with .f16 and .bf16 types") says which
lane holds which values of 16 rows and 32 columns. Lane 4 * group + quad has two kept values of each
of: row `group` and row `group + 8` ("half"), from column 4 * quad and from column 16 + 4 * quad
("side") on. Eight such steps are a unit of 256 columns: five pieces of 32 lanes times 16 bytes.

Pieces 0 to 3 hold the values of two steps each, a word for each step and side:

    byte 0: half 0, first value   1: half 1, first   2: half 0, second   3: half 1, second

Piece 4 is the metadata: for each kept value two bits, its column among the four. A step takes a
word of two of the four lanes of a group: lanes 0 and 1 for even steps (selector 0), lanes 2 and 3
for odd steps (selector 1). The first of the two has side 0, the second side 1; the low 16 bits
are half 0, the high ones half 1, and the four bits of quad 0 come first. So word i of a lane is for
steps 2 i and 2 i + 1.
"""

import torch

from serve.kernels.products.sparse.layout import kept_values

ROWS, COLUMNS = 16, 256
"""Of a unit."""
PIECES, LANES, LANE_BYTES = 5, 32, 16
UNIT_BYTES = PIECES * LANES * LANE_BYTES
GROUPS, QUADS = 8, 4
PAIRS = 4
"""Of steps in a unit."""


def units_of(columns: int) -> int:
    """Units that cover the columns; the last is filled with zeros."""
    return -(-columns // COLUMNS)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Bytes [N / 16, units, 5, 32, 16] of 8-bit codes [N, K] with at most two of four that are not
    zero; N is a multiple of 16, K of 4."""
    rows, columns = codes.shape
    units = units_of(columns)
    values = codes.contiguous().view(torch.int8)
    if columns % COLUMNS:
        values = torch.nn.functional.pad(values, (0, units * COLUMNS - columns))
    kept, places = kept_values(values.view(rows, -1, 4), codes.is_floating_point())
    # Rows: tile, half, group. Fours of columns: unit, pair of steps, step of it, side, quad.
    shape = (rows // ROWS, 2, GROUPS, units, PAIRS, 2, 2, QUADS)
    lanes = kept.view(*shape, 2).permute(0, 3, 4, 2, 7, 5, 6, 8, 1)
    pieces = lanes.reshape(-1, units, PAIRS, LANES, LANE_BYTES)
    fours = (places[..., 0] | places[..., 1] << 2).to(torch.uint8).view(*shape[:-1], 2, 2)
    both = fours[..., 0] | fours[..., 1] << 4
    metadata = both.permute(0, 3, 2, 5, 6, 4, 1, 7).reshape(-1, units, 1, LANES, LANE_BYTES)
    return torch.cat([pieces, metadata.view(torch.int8)], dim=2)


def unpack(packed: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The dense codes [N, K] again."""
    tiles, units = packed.shape[:2]
    kept = packed[:, :, :PAIRS].reshape(tiles, units, PAIRS, GROUPS, QUADS, 2, 2, 2, 2)
    kept = kept.permute(0, 8, 3, 1, 2, 5, 6, 4, 7).reshape(tiles * ROWS, -1, 2)
    both = packed[:, :, PAIRS].contiguous().view(torch.uint8)
    both = both.view(tiles, units, GROUPS, 2, 2, PAIRS, 2, 2).permute(0, 6, 2, 1, 5, 3, 4, 7)
    fours = torch.stack([both & 15, both >> 4], dim=-1).reshape(tiles * ROWS, -1)
    places = torch.stack([fours & 3, fours >> 2], dim=-1).long()
    dense = torch.zeros(*fours.shape, 4, dtype=torch.int8, device=packed.device)
    return dense.scatter(-1, places, kept).view(tiles * ROWS, -1)[:, :columns].view(dtype)
