"""Stores the weights of a layer in codebooks, so that its output on the calibration text changes
least.

The codebooks are found by k-means on the layer's vectors, each weighted by what an error in its
column costs. Then columns are rounded one after the other, and later columns compensate for the
error, as in GPTQ: all vectors of a column at once. `quantize/calibrate/solver/solve.py` explains
the factor.
"""

from dataclasses import dataclass

import torch

from conf.formats.quant_args import Codebooks
from conf.formats.vptq import CENTROIDS, INDICES, OFFSET, RESIDUAL, SCALE
from quantize.calibrate.solver.solve import column_order, factor
from quantize.calibrate.vectors.kmeans import SEED, kmeans, nearest
from quantize.vptq.packing import pack

BLOCK = 64  # columns behind a block are updated by one product
TINY = 1e-12


@dataclass(frozen=True)
class Settings:
    """The options of the step."""

    rounds: int
    """Of each k-means."""
    samples: int
    """Vectors for each entry that a k-means looks at."""
    dampening: float
    act_order: bool


@dataclass(frozen=True)
class Factor:
    """The factor of X'X, for all layers that share their input."""

    order: torch.Tensor
    """The columns in the order in which they are rounded."""
    unit: torch.Tensor
    diagonal: torch.Tensor
    dead: torch.Tensor
    """Columns, in this order, whose input is always zero."""
    fell_back: bool

    @classmethod
    def of(cls, products: torch.Tensor, settings: Settings) -> "Factor":
        columns = torch.arange(len(products), device=products.device)
        order = column_order(products, by_four=False) if settings.act_order else columns
        return cls(order, *factor(products, order, settings.dampening))


@dataclass(frozen=True)
class _Tables:
    """The codebooks [entries, length] of one layer, and the scale and offset of its columns, with
    the values that are stored."""

    main: torch.Tensor
    residual: torch.Tensor | None
    scale: torch.Tensor
    offset: torch.Tensor

    def round(self, vectors: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The stored vectors nearest to scaled ones, and the numbers of their entries."""
        numbers = [nearest(vectors, self.main)]
        rounded = self.main[numbers[0]]
        if self.residual is not None:
            numbers.append(nearest(vectors - rounded, self.residual))
            rounded = rounded + self.residual[numbers[1]]
        return rounded, numbers


def solve(
    weights: torch.Tensor,
    factored: Factor,
    codebooks: Codebooks,
    settings: Settings,
    stored_as: torch.dtype,
) -> dict[str, torch.Tensor]:
    """The tensors of a layer [rows, columns], by the last parts of their names."""
    padding = -len(weights) % codebooks.vector_length
    values = weights.to(torch.float32)[:, factored.order]
    values = torch.nn.functional.pad(values, (0, 0, 0, padding))
    values.masked_fill_(factored.dead, 0.0)
    tables = _fit(values, factored, codebooks, settings, stored_as)
    numbers = _walk(values, factored, tables, codebooks)
    inverse = factored.order.argsort()
    main, *residual = (number[:, inverse] for number in numbers)
    packed = pack(main[None], residual[0][None] if residual else None, codebooks)
    tensors = {INDICES: packed, CENTROIDS: tables.main.reshape(1, -1).to(stored_as)}
    if tables.residual is not None:
        tensors[RESIDUAL] = tables.residual.reshape(1, -1).to(stored_as)
    tensors[SCALE] = tables.scale[inverse].to(stored_as)
    tensors[OFFSET] = tables.offset[inverse].to(stored_as)
    return tensors


def _fit(
    values: torch.Tensor,
    factored: Factor,
    codebooks: Codebooks,
    settings: Settings,
    stored_as: torch.dtype,
) -> _Tables:
    """The codebooks of a layer: k-means on its vectors, then on what the first codebook leaves."""
    spread, mean = torch.std_mean(values, dim=0, unbiased=False)
    scale = _stored(spread.clamp_min(spread.mean() * 1e-3 + TINY), stored_as)
    offset = _stored(mean, stored_as)
    scaled = ((values - offset) / scale).t()  # a column is contiguous
    cost = (factored.diagonal * scale).square()  # of an error of one in a scaled column
    vectors = scaled.reshape(-1, codebooks.vector_length)
    importance = cost.repeat_interleave(len(vectors) // len(cost))
    chosen, importance = sample(importance, settings.samples * codebooks.entries)
    vectors = vectors[chosen]
    main = _stored(kmeans(vectors, importance, codebooks.entries, settings.rounds), stored_as)
    residual = None
    if codebooks.residual_entries:
        left = vectors - main[nearest(vectors, main)]
        count = codebooks.residual_entries
        residual = _stored(kmeans(left, importance, count, settings.rounds), stored_as)
    return _Tables(main, residual, scale, offset)


def _stored(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values that are read back, in float32."""
    return values.to(dtype).float()


def sample(importance: torch.Tensor, wanted: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of vectors, chosen at random by their importance, and how much each of them counts:
    for itself, and for those like it that were not chosen. All where no more are wanted.

    One column of some layers has nearly all of the output's energy. Were its vectors chosen as
    seldom as others, the codebook would miss most of them. This is priority sampling: sums over
    the sample are right on average.
    """
    if len(importance) <= wanted:
        return torch.arange(len(importance), device=importance.device), importance
    generator = torch.Generator(device=importance.device).manual_seed(SEED)
    uniform = torch.rand(len(importance), generator=generator, device=importance.device)
    priorities, order = (importance / uniform.clamp_min(TINY)).topk(wanted + 1)
    chosen = order[:wanted]
    return chosen, importance[chosen].clamp_min(priorities[wanted])


def _walk(
    values: torch.Tensor, factored: Factor, tables: _Tables, codebooks: Codebooks
) -> list[torch.Tensor]:
    """The numbers [vectors, columns] of main and residual entries, in the order of the columns."""
    columns, length = values.shape[1], codebooks.vector_length
    originals = values.t().contiguous()  # a column is contiguous here
    current = originals.clone()
    errors = torch.zeros_like(current)
    numbers: list[list[torch.Tensor]] = []
    for first in range(0, columns, BLOCK):
        last = min(first + BLOCK, columns)
        for column in range(first, last):
            scale, offset = tables.scale[column], tables.offset[column]
            scaled = (current[column] - offset) / scale
            rounded, of_column = tables.round(scaled.reshape(-1, length))
            numbers.append(of_column)
            error = originals[column] - (rounded.flatten() * scale + offset)
            error.masked_fill_(factored.dead[column], 0.0)
            errors[column] = error
            current[column + 1 : last].addr_(factored.unit[column, column + 1 : last], error)
        current[last:].addmm_(factored.unit[first:last, last:].t(), errors[first:last])
    return [torch.stack(of_book, dim=1) for of_book in zip(*numbers, strict=True)]
