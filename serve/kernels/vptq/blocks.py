"""A stored layer as blocks: columns that share a pair of codebooks, in the order of the inputs.

Checkpoints may store columns in another order, outlier columns apart, or several groups of columns.
All of that is undone once, when a layer is loaded.
"""

from dataclasses import dataclass

import torch

from conf.formats.vptq import CENTROIDS, OFFSET, ORDER, OUTLIERS, RESIDUAL, SCALE
from quantize.vptq.layer import VectorLayer
from serve.kernels.products.vptq_layout import ROOM, VectorWeight

FULL_SHARE = 0.5
"""A block of more than this share of the columns takes all of them, the others with a scale of
zero: that is faster than picking its columns from the activations."""


@dataclass(frozen=True)
class Block:
    """A part of a layer that one product multiplies. A layer is the sum of its blocks."""

    weight: VectorWeight
    columns: torch.Tensor | None = None
    """The columns of the activations that it takes; None for all of them."""


@dataclass(frozen=True)
class _Run:
    """Columns that share codebooks, as they are stored."""

    columns: torch.Tensor
    """The layer's column at each stored place."""
    main: torch.Tensor
    """[entries, vector]"""
    numbers: torch.Tensor
    """[vectors, columns]"""
    residual: torch.Tensor | None = None
    residual_numbers: torch.Tensor | None = None


def blocks_of(layer: VectorLayer, first: int, last: int) -> list[Block]:
    """The blocks of a layer's columns from `first` to `last`: tensor parallelism splits the columns
    of some layers."""
    return [
        _block(layer, run, kept, first, last - first)
        for run in _runs(layer)
        if (kept := (run.columns >= first) & (run.columns < last)).any()
    ]


def _runs(layer: VectorLayer) -> list[_Run]:
    books, tensors = layer.codebooks, layer.tensors
    numbers, residual_numbers = layer.numbers()
    order = torch.arange(layer.columns, device=numbers.device)
    if ORDER in tensors:
        order = layer.order()
    runs, start = [], books.outlier_columns
    if start:
        entries = tensors[OUTLIERS].reshape(-1, books.outlier_vector_length)
        runs.append(_Run(order[:start], entries, layer.outlier_numbers()))
    length, width = books.vector_length, books.group_columns(layer.columns)
    for group in range(books.groups):
        run = _Run(
            order[start + group * width : start + (group + 1) * width],
            tensors[CENTROIDS][group].reshape(-1, length),
            numbers[group],
        )
        if residual_numbers is not None:
            entries = tensors[RESIDUAL][group].reshape(-1, length)
            run = _Run(run.columns, run.main, run.numbers, entries, residual_numbers[group])
        runs.append(run)
    return runs


def _block(layer: VectorLayer, run: _Run, kept: torch.Tensor, first: int, width: int) -> Block:
    """The kept columns of a run, in the layer's order, with room for whole reads of the kernel."""
    columns, order = run.columns[kept].sort()
    count = len(columns)
    takes_all = count > FULL_SHARE * width and width % ROOM == 0
    size = width if takes_all else -(-count // ROOM) * ROOM
    places = columns - first if takes_all else torch.arange(count, device=columns.device)

    def placed(values: torch.Tensor) -> torch.Tensor:
        """Values [..., columns] at the places of the block; zero between them."""
        wide = values.new_zeros((*values.shape[:-1], size))
        wide[..., places] = values
        return wide

    def codes(numbers: torch.Tensor | None) -> torch.Tensor | None:
        return None if numbers is None else placed(numbers[:, kept][:, order].to(torch.int32))

    tensors, main_codes = layer.tensors, codes(run.numbers)
    assert main_codes is not None
    ones = torch.ones(count, dtype=run.main.dtype, device=run.main.device)
    weight = VectorWeight(
        codes=main_codes,
        scales=placed(tensors[SCALE][columns] if SCALE in tensors else ones)[None],
        bits=16,
        columns=size,
        main=run.main.contiguous(),
        residual=None if run.residual is None else run.residual.contiguous(),
        residual_codes=codes(run.residual_numbers),
        biases=placed(tensors[OFFSET][columns]) if OFFSET in tensors else None,
        has_scales=SCALE in tensors or count < size,
    )
    return Block(weight, None if takes_all else placed(columns - first))
