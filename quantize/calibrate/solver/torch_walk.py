"""The walk through a block of columns in torch, for a CPU."""

import torch

from conf.schema.ranges import MASK_WIDTH
from quantize.calibrate.solver.block import Block, Pruning
from quantize.calibrate.solver.grid import Grid

WIDEST_BLOCK = 32  # the fastest of 16, 32, 64 and 128


def walk(block: Block, grid: Grid | None, pruning: Pruning) -> None:
    """One column after the other; each in turn changes those behind it in the block."""
    values = block.values.t().contiguous()  # a column is contiguous here
    originals = block.originals.t().contiguous()
    kept = None
    if pruning.kept is not None:
        kept = pruning.kept[:, block.start : block.start + len(values)].t()
    for column in range(len(values)):
        if pruning.choose and column % MASK_WIDTH == 0:
            four = slice(column, column + MASK_WIDTH)
            given = None if kept is None else kept[four]
            chosen = _two_of_four(
                values[four], originals[four], block.unit[four, four], block.diagonal[four], given
            )
        rounded = values[column]
        if grid is not None:
            rounded = grid.round(rounded, block.start + column)
        if pruning.choose:
            rounded = rounded * chosen[column % MASK_WIDTH]
        elif kept is not None:
            rounded = rounded * kept[column]
        error = originals[column] - rounded
        values[column] = rounded
        originals[column] = error
        values[column + 1 :].addr_(block.unit[column, column + 1 :], error)
    block.values.copy_(values.t())
    block.errors.copy_(originals.t())


def _two_of_four(
    values: torch.Tensor,
    originals: torch.Tensor,
    unit: torch.Tensor,
    diagonal: torch.Tensor,
    kept: torch.Tensor | None,
) -> torch.Tensor:
    """[4, rows], true for the two weights of four that are kept: SparseGPT's criterion, the error
    that a zero would leave. Each value is what it would be, were none of the four rounded."""
    values = values.clone()
    for column in range(MASK_WIDTH - 1):
        left = originals[column] - values[column]
        values[column + 1 :].addr_(unit[column, column + 1 :], left)
    harm = (values * diagonal[:, None]).square()
    if kept is not None:
        harm = harm.masked_fill(~kept, -1.0)
    dropped = harm.argsort(dim=0, stable=True)[: MASK_WIDTH // 2]
    chosen = torch.ones_like(harm, dtype=torch.bool).scatter_(0, dropped, False)
    return chosen if kept is None else chosen & kept
