"""The product of a layer: of all its parts, such as q, k and v, and of the blocks of each part."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serve.kernels.op import Planned
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.vptq.blocks import Block
from serve.kernels.vptq.plans import PRODUCTS, joined, key_of, prepared_block

NAME = "vptq"


@dataclass(frozen=True)
class PlacedBlock:
    """A block, and where its inputs, tensors and outputs are."""

    plan: Plan
    first: int
    last: int
    """Its tensors among those of the layer. The first one has its columns if it takes some only."""
    takes_some: bool
    row: int
    rows: int
    """Its outputs among those of the layer."""
    adds: bool
    """Adds to what an earlier block of the same part has written."""


class LayerProduct(Product):
    """Multiplies block by block, each by the product that is the fastest for so many tokens."""

    name = NAME

    def __init__(self, blocks: Sequence[PlacedBlock], rows: int) -> None:
        self.blocks, self.rows = tuple(blocks), rows

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        raise Unusable("is made of blocks, not of a weight")

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        x = inputs.plain
        out = torch.empty((x.shape[0], self.rows), dtype=x.dtype, device=x.device)
        for block in self.blocks:
            of_block = tensors[block.first : block.last]
            taken = x
            if block.takes_some:
                taken, of_block = x.index_select(1, of_block[0]), of_block[1:]
            _write(block, taken, of_block, out[:, block.row : block.row + block.rows])
        return out


def _write(
    block: PlacedBlock, x: torch.Tensor, tensors: list[torch.Tensor], out: torch.Tensor
) -> None:
    step = block.plan.step(x.shape[0])
    product = PRODUCTS[step.product]
    if not block.adds and product.outputs(tensors) == block.rows:
        product.write(x, tensors, step.options, out)
        return
    # The last vector may be longer than the layer.
    result = product.multiply(Inputs(x), tensors, step.options)[:, : block.rows]
    if block.adds:
        out.add_(result)
    else:
        out.copy_(result)


@dataclass(frozen=True)
class PreparedLayer:
    """A layer as the op runs it."""

    key: str
    product: LayerProduct
    tensors: list[torch.Tensor]
    refused: dict[str, str]
    """Products that are not used for all of it, and why."""

    @property
    def planned(self) -> Planned:
        """As the op looks it up."""
        plan = Plan((Step(None, NAME),))
        return Planned((self.product,), (len(self.tensors),), plan)


def on_gpu(weight: VectorWeight) -> bool:
    return bool(weight.codes.is_cuda)


def with_joined(
    parts: Sequence[tuple[int, Sequence[Block]]],
) -> Sequence[tuple[int, Sequence[Block]]]:
    """All parts as one, where a single launch can multiply them on a GPU: that saves the begin and
    the end of the others."""
    weights = [block.weight for rows, blocks in parts for block in blocks]
    whole = all(
        len(blocks) == 1 and blocks[0].columns is None and blocks[0].weight.rows == rows
        for rows, blocks in parts
    )
    if len(parts) == 1 or not whole or not all(map(on_gpu, weights)):
        return parts
    weight = joined(weights)
    return parts if weight is None else [(weight.outputs, [Block(weight)])]


def prepared_layer(parts: Sequence[tuple[int, Sequence[Block]]]) -> PreparedLayer:
    """The product of parts, each with its number of outputs and its blocks. The key of equal layers
    is the same, so that vLLM compiles them once; it has no trace of what was measured."""
    placed: list[PlacedBlock] = []
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    refused: dict[str, str] = {}
    row = 0
    for rows, blocks in with_joined(parts):
        for number, block in enumerate(blocks):
            prepared = prepared_block(block.weight)
            refused |= prepared.refused
            of_block = prepared.tensors
            if block.columns is not None:
                of_block = [block.columns, *of_block]
            last = len(tensors) + len(of_block)
            takes_some = block.columns is not None
            placed.append(
                PlacedBlock(prepared.plan, len(tensors), last, takes_some, row, rows, number > 0)
            )
            tensors += of_block
            names.append(f"{rows}:{key_of(block.weight)}{'/some' if takes_some else ''}")
        row += rows
    return PreparedLayer(",".join(names), LayerProduct(placed, row), tensors, refused)
