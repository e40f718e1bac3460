"""The kernel of `cuda_kernels/vptq.py`, lane by lane as the CUDA manual defines its instructions.

Shows that the order of the packed indices fits the fragments of `ldmatrix` and `mma`, and how often
look-ups meet in shared memory.
"""

import torch

from serve.kernels.products.vptq_layout import COLUMNS, GROUPS, LANES, STEPS, unswapped
from serve.kernels.products.vptq_prepared import Part

LANE = torch.arange(LANES)
GROUP, QUAD = LANE >> 2, LANE & 3


def loaded(rows: torch.Tensor) -> torch.Tensor:
    """ldmatrix.x4.trans of 32 rows of 8: [register, lane, half]. Matrix m has the rows of lanes
    8 m to 8 m + 7; transposed, a lane gets rows 2 quad and 2 quad + 1 of column group."""
    matrices = rows.view(4, 8, 8)
    return torch.stack([matrices[:, 2 * QUAD + half, GROUP] for half in range(2)], dim=-1)


def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """mma.m16n8k16 on fragments a [4, lane, half] and b [2, lane, half]: the sums [4, lane]."""
    left, right = torch.zeros(16, 16), torch.zeros(16, 8)
    for half in range(2):
        for register in range(4):
            row, column = GROUP + 8 * (register & 1), 2 * QUAD + half + 8 * (register >> 1)
            left[row, column] = a[register, :, half]
        for register in range(2):
            right[2 * QUAD + half + 8 * register, GROUP] = b[register, :, half]
    sums = left @ right
    return torch.stack(
        [sums[GROUP + 8 * (place >> 1), 2 * QUAD + (place & 1)] for place in range(4)]
    )


def activations(x: torch.Tensor, first: int) -> torch.Tensor:
    """The 8 activations of each lane from column `first` on, for tokens up to 8 and from 8 on:
    [2, lane, 8]; zero beyond the last token and column."""
    whole = torch.zeros(16, first + 32)
    known = x[:, : first + 32]
    whole[: known.shape[0], : known.shape[1]] = known
    columns = (first + 8 * QUAD)[:, None] + torch.arange(8)
    return torch.stack([whole[GROUP[:, None] + 8 * above, columns] for above in range(2)])


def product(x: torch.Tensor, part: Part) -> torch.Tensor:
    """[tokens, N] in float32."""
    rows, blocks = part.low.shape[:2]
    mask = (1 << part.main_bits) - 1
    books = [
        book.flatten(1).float() if book.numel() else None for book in (part.main, part.residual)
    ]
    result = torch.zeros(16, rows, 8)
    for row in range(rows):
        for block in range(blocks):
            low = part.low[row, block].long() & 0xFFFF
            tail = part.tail[row, block].long() & 0xFFFF if part.tail_bytes else 0 * low
            both = low | tail << 16
            both = unswapped(both) if part.swaps.numel() else both
            for step in range(STEPS):
                below, above = activations(x, block * COLUMNS + step * 32)
                indices = (both[:, step] & mask, both[:, step] >> part.main_bits)
                for book, index in zip(books, indices, strict=True):
                    if book is None:
                        continue
                    registers = loaded(book[index])
                    for place in range(2):
                        a0, a2 = (4 * place, 4 * place + 2)
                        a = torch.stack(
                            [lanes[:, at : at + 2] for at in (a0, a2) for lanes in (below, above)]
                        )
                        sums = multiplied(a, registers[2 * place : 2 * place + 2])
                        for number in range(4):
                            token = GROUP + 8 * (number >> 1)
                            result[token, row, 2 * QUAD + (number & 1)] += sums[number]
    return result[: x.shape[0], :, : part.vector].reshape(x.shape[0], -1)


def turns(indices: torch.Tensor) -> float:
    """The mean number of turns in which eight lanes read their entries of 16 bytes."""
    together = indices.unflatten(2, (LANES // GROUPS, GROUPS)) % GROUPS
    loads = torch.nn.functional.one_hot(together, GROUPS).sum(dim=3)
    return float(loads.amax(dim=-1).float().mean())
