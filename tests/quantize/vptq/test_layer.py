"""VPTQ in plain torch: packing, weights of a layer, and a linear layer with codebooks."""

import pytest
import torch

from conf.formats.quant_args import Codebooks, QuantGroup, vector_args
from conf.formats.vptq import FORMAT
from quantize.vptq.layer import VectorLayer
from quantize.vptq.linear import VectorLinear, replace_linears
from quantize.vptq.packing import pack, unpack

ROWS, COLUMNS = 21, 37  # neither whole vectors nor whole words
BOOKS = [
    Codebooks(8, 65536, 65536),
    Codebooks(8, 4096, 4096),
    Codebooks(4, 256),
    Codebooks(6, 8192, 4, has_scales=False),
    Codebooks(
        8,
        64,
        16,
        groups=3,
        outlier_columns=4,
        outlier_vector_length=4,
        outlier_entries=32,
        has_order=True,
    ),
]


def random_tensors(books: Codebooks, seed: int = 0) -> dict[str, torch.Tensor]:
    """Stored tensors of a layer with random numbers and codebooks."""
    generator = torch.Generator().manual_seed(seed)
    group = QuantGroup("vptq", vector_args(books))
    tensors = {}
    for name, stored in FORMAT.tensors(group, ROWS, COLUMNS).items():
        shape = stored.shapes[0]
        if name == "indices":
            shape = (*shape[:2], books.group_columns(COLUMNS))
            main = torch.randint(books.entries, shape, generator=generator)
            residual = torch.randint(max(1, books.residual_entries), shape, generator=generator)
            tensors[name] = pack(main, residual if books.residual_entries else None, books)
        elif name == "outlier_indices":
            numbers = torch.randint(books.outlier_entries, shape, generator=generator)
            tensors[name] = numbers.to(torch.int16)
        elif name == "perm":
            tensors[name] = torch.randperm(COLUMNS, generator=generator).to(torch.int16)
        else:
            tensors[name] = torch.randn(shape, generator=generator)
    return tensors


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_numbers_are_the_same_after_packing(books: Codebooks) -> None:
    generator = torch.Generator().manual_seed(1)
    main = torch.randint(books.entries, (2, 3, COLUMNS), generator=generator)
    main[..., 0], main[..., -1] = books.entries - 1, books.entries - 1
    residual = None
    if books.residual_entries:
        residual = torch.randint(books.residual_entries, (2, 3, COLUMNS), generator=generator)
        residual[..., -1] = books.residual_entries - 1
    packed = pack(main, residual, books)
    assert packed.dtype is torch.int32
    assert packed.shape[-1] == -(-COLUMNS * books.index_bits // 32)
    again, residual_again = unpack(packed, books, COLUMNS)
    assert torch.equal(again, main)
    if residual is None:
        assert residual_again is None
    else:
        assert residual_again is not None
        assert torch.equal(residual_again, residual)


def test_the_bits_lie_where_the_format_has_them() -> None:
    """12 bits: the residual entry in the high 4 of each, the first number in the lowest bits."""
    packed = pack(
        torch.tensor([[0x12, 0x34, 0x56]]), torch.tensor([[0xA, 0xB, 0xC]]), Codebooks(8, 256, 16)
    )
    bits = 0xA12 | 0xB34 << 12 | 0xC56 << 24
    low = bits & 0xFFFFFFFF
    assert packed.tolist() == [[low - (1 << 32) if low >> 31 else low, bits >> 32]]


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_each_weight_is_the_sum_of_its_entries(books: Codebooks) -> None:
    tensors = random_tensors(books)
    layer = VectorLayer(books, ROWS, COLUMNS, tensors)
    weights = layer.dequantize()
    assert weights.shape == (ROWS, COLUMNS)
    main, residual = layer.numbers()
    width, length = books.group_columns(COLUMNS), books.vector_length
    order = layer.order().tolist() if books.has_order else list(range(COLUMNS))
    for place, column in enumerate(order):
        for row in range(ROWS):
            if place < books.outlier_columns:
                height = books.outlier_vector_length
                entry = int(layer.outlier_numbers()[row // height, place])
                expected = tensors["outlier_centroids.weight"][0, entry * height + row % height]
            else:
                group, within = divmod(place - books.outlier_columns, width)
                entry = int(main[group, row // length, within])
                expected = tensors["centroids.weight"][group, entry * length + row % length]
                if residual is not None:
                    entry = int(residual[group, row // length, within])
                    codebook = tensors["res_centroids.weight"]
                    expected = expected + codebook[group, entry * length + row % length]
            if books.has_scales:
                scale, offset = tensors["weight_scale"][column], tensors["weight_bias"][column]
                expected = expected * scale + offset
            assert float(weights[row, column]) == pytest.approx(float(expected), abs=1e-6)


def test_a_linear_layer_with_codebooks_multiplies_its_weights() -> None:
    books = BOOKS[-1]
    model = torch.nn.Sequential(torch.nn.Linear(COLUMNS, ROWS))
    bias = model[0].bias.data.clone()
    replace_linears(model, {"0": QuantGroup("vptq", vector_args(books))}, torch.float32)
    tensors = random_tensors(books)
    named = {f"0.{name}": tensor for name, tensor in tensors.items()} | {"0.bias": bias}
    assert set(model.state_dict()) == set(named)
    model.load_state_dict(named)
    assert isinstance(model[0], VectorLinear)
    inputs = torch.randn(3, COLUMNS)
    weights = VectorLayer(books, ROWS, COLUMNS, tensors).dequantize()
    assert torch.allclose(model(inputs), inputs @ weights.T + bias, atol=1e-5)
