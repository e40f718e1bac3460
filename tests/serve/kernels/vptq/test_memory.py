"""Bytes of weights in codebooks on a GPU, against the tensors that kernels read."""

import pytest
import torch

from conf.files.stored_tensor import Tensor
from conf.formats.quant_args import Codebooks, QuantGroup, QuantizationConfig, vector_args
from conf.formats.vptq import INDICES, METHOD, OUTLIER_INDICES
from serve.kernels.linear.loading import stored_bytes
from serve.kernels.products import vptq_prepared
from serve.kernels.products.short_vectors import layout as short
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.vptq.blocks import blocks_of
from serve.kernels.vptq.exact import VptqExact
from serve.kernels.vptq.memory import wider_numbers_bytes
from serve.kernels.vptq.plans import joined
from tests.serve.kernels.vptq.made import BOOKS, stored_layer

ROWS, COLUMNS, SHARED_BYTES = 96, 640, 200 << 10
NAME = "model.layers.0.mlp.down_proj"
STORED = (INDICES, OUTLIER_INDICES)


def numbers_bytes(weight: VectorWeight) -> int:
    """Of the tensors with numbers, as a GPU has them."""
    if weight.vector not in (4, 8):
        return stored_bytes(VptqExact().prepare(weight)[:2])
    if joined([weight]) is not None:
        return stored_bytes(short.prepared([weight])[:1])
    return stored_bytes(vptq_prepared.prepared(weight, SHARED_BYTES)[2:4])


def config_of(books: Codebooks) -> QuantizationConfig:
    return QuantizationConfig(METHOD, [QuantGroup("g", vector_args(books), targets=[NAME])])


@pytest.mark.parametrize(
    "books",
    [
        *BOOKS,
        *(Codebooks(4, entries) for entries in (16, 1024, 2048, 4096, 8192, 16384, 32768)),
        Codebooks(4, 4096, groups=2),
        Codebooks(8, 4096, 4096),
        Codebooks(8, 65536, 65536),
        Codebooks(6, 256),
        Codebooks(6, 256, 64),
    ],
    ids=str,
)
def test_numbers_are_counted_as_kernels_store_them(books: Codebooks) -> None:
    layer = stored_layer(books, ROWS, COLUMNS)
    held = sum(numbers_bytes(block.weight) for block in blocks_of(layer, 0, COLUMNS))
    tensors = {f"{NAME}.{name}": layer.tensors[name] for name in STORED if name in layer.tensors}
    shapes = {
        name: Tensor("I32" if tensor.dtype == torch.int32 else "I16", tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    stored = sum(shape.bytes for shape in shapes.values())
    assert wider_numbers_bytes(shapes, config_of(books)) == held - stored


@pytest.mark.parametrize(
    ("entries", "bits", "on_gpu"), [(2048, 2.75, 3.25), (4096, 3.0, 3.25), (1024, 2.5, 2.5)]
)
def test_small_codebooks_have_bits_that_choose_a_copy(
    entries: int, bits: float, on_gpu: float
) -> None:
    """What docs/serving.md says of the recipes' codebooks, for a layer of whole tiles."""
    books, rows, columns = Codebooks(4, entries), 4096, 4096
    words = columns * books.index_bits // 32
    stored = {f"{NAME}.indices": Tensor("I32", (1, rows // 4, words))}
    assert stored[f"{NAME}.indices"].bytes * 8 == rows * columns * bits
    wider = wider_numbers_bytes(stored, config_of(books))
    assert wider * 8 == rows * columns * (on_gpu - bits)


def test_other_formats_have_no_such_numbers() -> None:
    stored = {f"{NAME}.weight_packed": Tensor("I32", (64, 64))}
    assert wider_numbers_bytes(stored, None) == 0
    assert wider_numbers_bytes(stored, config_of(Codebooks(4, 4096))) == 0
    unknown = {"model.other.indices": Tensor("I32", (1, 64, 64))}
    assert wider_numbers_bytes(unknown, config_of(Codebooks(4, 4096))) == 0
