"""GPTQ's rounding and SparseGPT's pruning, with one Cholesky factorization and no inverse.

With H = R R' and R upper triangular, the value of column k before it is rounded is
    w_k + sum over i < k of (w_i - q_i) R_ik / R_kk,
where w are the original weights and q the rounded ones. This is GPTQ's own value: its factor of
the inverse Hessian is R^-1. Rows are independent, so that matrices which share a Hessian are solved
as one. Columns are walked in blocks: by a Triton kernel on a GPU, by torch on a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quantize.calibrate.solver.grid import Grid

OUTER_BLOCK = 1024  # columns behind it are updated by one product
WIDEST_CPU_BLOCK = 32  # the fastest of 16, 32, 64 and 128
MASK_WIDTH = 4  # of 2:4
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Pruning:
    """Which weights are or become zero."""

    kept: torch.Tensor | None = None
    """[rows, columns], true where a weight may differ from zero; none: everywhere."""
    choose: bool = False
    """Whether to choose two zeros in every four weights of a row."""

    def ordered(self, order: torch.Tensor | None) -> "Pruning":
        kept = self.kept if order is None or self.kept is None else self.kept[:, order]
        return Pruning(kept, self.choose)


NOTHING_PRUNED = Pruning()


@dataclass(frozen=True)
class Block:
    """A run of columns, with all that is needed to walk through them. Tensors are views: what is
    written to `values` and `errors` is the result."""

    start: int
    values: torch.Tensor
    """[rows, columns]: as they are before this block; afterwards rounded."""
    originals: torch.Tensor
    """[rows, columns]"""
    errors: torch.Tensor
    """[rows, columns]: afterwards originals less rounded."""
    unit: torch.Tensor
    """[columns, columns]: R_ik / R_kk."""
    diagonal: torch.Tensor
    """[columns]: R_kk."""


Walk = Callable[[Block, Grid | None, Pruning], None]


@dataclass(frozen=True)
class Solution:
    """Weights [rows, columns] in float32, and whether the products had no factorization: then
    nothing is compensated."""

    weights: torch.Tensor
    fell_back: bool


def solve(
    weights: torch.Tensor,
    products: torch.Tensor,
    grid: Grid | None,
    pruning: Pruning = NOTHING_PRUNED,
    *,
    act_order: bool,
    dampening: float,
    block_size: int,
) -> Solution:
    """Rounds or prunes weights [rows, columns] whose inputs have these products [columns, columns].

    Without a grid, weights are only pruned."""
    order = _order(products, pruning.choose) if act_order else None
    unit, diagonal, dead, fell_back = _factor(products, order, dampening)
    values = weights.float()
    values = values.clone() if order is None else values[:, order]
    values.masked_fill_(dead, 0.0)
    originals = values.clone()
    pruning = pruning.ordered(order)
    grid = None if grid is None else grid.ordered(order)
    walk, block_size = _way(values.device, block_size)
    columns = values.shape[1]
    outer = max(OUTER_BLOCK // block_size, 1) * block_size
    errors = torch.empty(len(values), min(outer, columns), device=values.device)
    for first in range(0, columns, outer):
        last = min(first + outer, columns)
        for start in range(first, last, block_size):
            stop = min(start + block_size, last)
            here = slice(start, stop)
            block = Block(
                start,
                values[:, here],
                originals[:, here],
                errors[:, start - first : stop - first],
                unit[here, here],
                diagonal[here],
            )
            walk(block, grid, pruning)
            values[:, stop:last].addmm_(block.errors, unit[here, stop:last])
        values[:, last:].addmm_(errors[:, : last - first], unit[first:last, last:])
    if order is not None:
        values = values[:, order.argsort()]
    return Solution(values, fell_back)


def _order(products: torch.Tensor, by_four: bool) -> torch.Tensor:
    """Columns with the largest inputs first; whole groups of four where zeros are to be chosen."""
    diagonal = products.diagonal()
    if not by_four:
        return diagonal.argsort(descending=True)
    groups = diagonal.view(-1, MASK_WIDTH).sum(1).argsort(descending=True)
    places = torch.arange(MASK_WIDTH, device=products.device)
    return (groups[:, None] * MASK_WIDTH + places).flatten()


def _factor(
    products: torch.Tensor, order: torch.Tensor | None, dampening: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    """R with its columns divided by the diagonal, the diagonal, columns whose input is always zero,
    and whether there is no factorization.

    The lower factor of the matrix with its columns backwards is R mirrored."""
    columns = len(products)
    device = products.device
    backwards = torch.arange(columns - 1, -1, -1, device=device) if order is None else order.flip(0)
    mirrored = products[backwards][:, backwards]
    diagonal = mirrored.diagonal()
    dead = diagonal == 0
    diagonal.masked_fill_(dead, 1.0)
    diagonal.add_(dampening * diagonal.mean())
    lower, info = torch.linalg.cholesky_ex(mirrored)
    del mirrored
    dead = dead.flip(0)
    if info.item():
        return torch.eye(columns, device=device), torch.ones(columns, device=device), dead, True
    upper = lower.flip(0, 1).contiguous()
    del lower
    diagonal = upper.diagonal().clone()
    upper.div_(diagonal)
    return upper, diagonal, dead, False


def _way(device: torch.device, block_size: int) -> tuple[Walk, int]:
    """How a block is walked on this device, and how many columns it has."""
    if device.type == "cuda":
        from quantize.calibrate.solver.triton_walk import WIDEST_BLOCK, walk

        return walk, min(block_size, WIDEST_BLOCK)
    return walk_by_torch, min(block_size, WIDEST_CPU_BLOCK)


def walk_by_torch(block: Block, grid: Grid | None, pruning: Pruning) -> None:
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


def output_errors(
    weights: list[torch.Tensor], changed: list[torch.Tensor], products: torch.Tensor
) -> list[float]:
    """The relative error of each module's output on the calibration text, |(W - Q) X| / |W X|."""
    before, after = [], []
    for original, other in zip(weights, changed, strict=True):
        before.append(_output_energy(original.float(), products))
        after.append(_output_energy(original.float() - other.float(), products))
    energies = torch.stack([torch.stack(after), torch.stack(before)])
    errors: list[float] = (energies[0] / energies[1].clamp_min(TINY)).sqrt().tolist()
    return errors


def _output_energy(weights: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The squared norm of a module's output. TF32 is exact enough for a figure that is shown."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return ((weights @ products) * weights).sum().clamp_min(0)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
