"""GPTQ's rounding and SparseGPT's pruning, with one Cholesky factorization and no inverse.

With H = R R' and R upper triangular, the value of column k before it is rounded is
    w_k + sum over i < k of (w_i - q_i) R_ik / R_kk,
where w are the original weights and q the rounded ones. This is GPTQ's own value: its factor of
the inverse Hessian is R^-1. Rows are independent, so that matrices which share a Hessian are solved
as one. Columns are walked in blocks: by a Triton kernel on a GPU, by torch on a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

from conf.schema.ranges import MASK_WIDTH
from quantize.calibrate.solver import torch_walk
from quantize.calibrate.solver.block import NOTHING_PRUNED, TINY, Block, Pruning
from quantize.calibrate.solver.grid import Grid
from quantize.calibrate.solver.products import output_energy
from quantize.parallel.shards import of_all_rows

OUTER_BLOCK = 1024  # columns behind it are updated by one product


Walk = Callable[[Block, Grid | None, Pruning], None]
Factored = tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]
"""What `factor` returns."""


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

    Without a grid, weights are only pruned. With several ranks, each solves for a part of the rows,
    and all have the whole solution."""
    order = column_order(products, pruning.choose) if act_order else None
    factored = factor(products, order, dampening)

    def solved(rows: slice) -> torch.Tensor:
        part = None if grid is None else grid.rows(rows)
        return _solved(weights[rows], factored, order, part, pruning.rows(rows), block_size)

    return Solution(of_all_rows(len(weights), solved), fell_back=factored[3])


def _solved(
    weights: torch.Tensor,
    factored: Factored,
    order: torch.Tensor | None,
    grid: Grid | None,
    pruning: Pruning,
    block_size: int,
) -> torch.Tensor:
    unit, diagonal, dead, _ = factored
    values = weights.to(torch.float32, copy=True)
    values = values if order is None else values[:, order]
    values.masked_fill_(dead, 0.0)
    originals = values.clone()
    pruning = pruning.ordered(order)
    grid = None if grid is None else grid.ordered(order)
    walk, block_size = _walk_for(values.device, block_size)
    if pruning.choose:  # the four weights of a choice stand in one block
        block_size = max(MASK_WIDTH, block_size // MASK_WIDTH * MASK_WIDTH)
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
    return values if order is None else values[:, order.argsort()]


def column_order(products: torch.Tensor, by_four: bool) -> torch.Tensor:
    """Columns with the largest inputs first; whole groups of four where zeros are to be chosen."""
    diagonal = products.diagonal()
    if not by_four:
        return diagonal.argsort(descending=True)
    groups = diagonal.view(-1, MASK_WIDTH).sum(1).argsort(descending=True)
    places = torch.arange(MASK_WIDTH, device=products.device)
    return (groups[:, None] * MASK_WIDTH + places).flatten()


def factor(products: torch.Tensor, order: torch.Tensor | None, dampening: float) -> Factored:
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


def _walk_for(device: torch.device, block_size: int) -> tuple[Walk, int]:
    """How a block is walked on this device, and how many columns it has."""
    walk = triton_walk() if device.type == "cuda" else torch_walk
    return walk.walk, min(block_size, walk.WIDEST_BLOCK)


def triton_walk() -> ModuleType:
    """Imported late: Triton is not installed where there is no GPU."""
    from quantize.calibrate.solver import triton_walk

    return triton_walk


def output_errors(
    weights: list[torch.Tensor], changed: list[torch.Tensor], products: torch.Tensor
) -> list[float]:
    """The relative error of each module's output on the calibration text, |(W - Q) X| / |W X|."""
    before, after = [], []
    for original, other in zip(weights, changed, strict=True):
        before.append(output_energy(original.float(), products))
        after.append(output_energy(original.float() - other.float(), products))
    energies = torch.stack([torch.stack(after), torch.stack(before)])
    errors: list[float] = (energies[0] / energies[1].clamp_min(TINY)).sqrt().tolist()
    return errors
