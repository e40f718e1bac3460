"""Blocks give the weights of the stored layer, whatever its order, outlier columns and groups."""

import pytest
import torch

from conf.formats.quant_args import Codebooks
from quantize.vptq.layer import VectorLayer
from serve.kernels.products.product import Inputs
from serve.kernels.products.vptq_unpack import VptqUnpack
from serve.kernels.vptq.blocks import blocks_of
from serve.kernels.vptq.exact import VptqExact, dequantized
from serve.kernels.vptq.product import prepared_layer
from tests.serve.kernels.vptq.made import (
    BOOKS,
    GROUPS,
    OUTLIERS,
    PLAIN,
    activations,
    error,
    stored_layer,
)

ROWS, COLUMNS = 36, 72


def weights_of(layer: VectorLayer, first: int, last: int) -> torch.Tensor:
    """The sum of a layer's blocks."""
    whole = torch.zeros(layer.rows, last - first)
    for block in blocks_of(layer, first, last):
        tensors = VptqExact().prepare(block.weight)
        weights = dequantized(tensors, 0, block.weight.codes.shape[0])[: layer.rows]
        columns = torch.arange(last - first) if block.columns is None else block.columns
        whole.index_add_(1, columns, weights)
    return whole


@pytest.mark.parametrize("books", BOOKS, ids=str)
@pytest.mark.parametrize(("first", "last"), [(0, COLUMNS), (0, 24), (24, 48), (36, 72)])
def test_blocks_are_the_stored_weights(books: Codebooks, first: int, last: int) -> None:
    layer = stored_layer(books, ROWS, COLUMNS)
    assert torch.equal(weights_of(layer, first, last), layer.dequantize()[:, first:last])


@pytest.mark.parametrize(("books", "picks"), [(PLAIN, [False]), (OUTLIERS, [True, False])])
def test_activations_are_read_as_they_are_where_that_is_faster(
    books: Codebooks, picks: list[bool]
) -> None:
    blocks = blocks_of(stored_layer(books, ROWS, COLUMNS), 0, COLUMNS)
    assert [block.columns is not None for block in blocks] == picks
    assert all(block.weight.columns % 8 == 0 for block in blocks)


def test_groups_take_their_columns() -> None:
    blocks = blocks_of(stored_layer(GROUPS, ROWS, COLUMNS), 0, COLUMNS)
    assert [block.weight.columns for block in blocks] == [24, 24, 24, 24], "padded from 18"
    assert all(block.weight.has_scales for block in blocks), "zeros for the padding"


def test_columns_that_a_rank_has_none_of_give_no_block() -> None:
    layer = stored_layer(GROUPS, ROWS, COLUMNS)
    assert len(blocks_of(layer, 0, 18)) == 1


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_a_layer_of_parts_multiplies_as_the_stored_ones(books: Codebooks) -> None:
    layers = [stored_layer(books, ROWS, COLUMNS), stored_layer(PLAIN, 20, COLUMNS, seed=1)]
    prepared = prepared_layer([(layer.rows, blocks_of(layer, 0, COLUMNS)) for layer in layers])
    x = activations(5, COLUMNS, torch.float32)
    found = prepared.planned.multiply(Inputs(x), prepared.tensors)
    right = torch.cat([x @ layer.dequantize().t() for layer in layers], dim=1)
    assert found.shape == (5, ROWS + 20)
    assert error(found, right) < 1e-6
    assert prepared.refused == {}


def test_equal_layers_have_equal_keys() -> None:
    def key(books: Codebooks, seed: int) -> str:
        layer = stored_layer(books, ROWS, COLUMNS, seed)
        return prepared_layer([(ROWS, blocks_of(layer, 0, COLUMNS))]).key

    assert key(OUTLIERS, 0) == key(OUTLIERS, 1)
    assert len({key(books, 0) for books in BOOKS}) == len(BOOKS)


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_the_products_of_a_gpu_take_every_block(books: Codebooks) -> None:
    """Unpacking reads the tensors that our kernel reads."""
    layer = stored_layer(books, 32, COLUMNS)
    total, x = torch.zeros(3, 32), activations(3, COLUMNS)
    product = VptqUnpack()
    for block in blocks_of(layer, 0, COLUMNS):
        taken = x if block.columns is None else x[:, block.columns]
        tensors = product.prepare(block.weight)
        (options, *_) = product.options(32, COLUMNS, 3)
        total += product.multiply(Inputs(taken), tensors, options).float()
    assert error(total, x.float() @ layer.dequantize().t()) < 0.02
