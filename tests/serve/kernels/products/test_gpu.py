"""Our products against float64 on a GPU: every candidate, and the same result in every run."""

import pytest
import torch

from serve.kernels.products.few_tokens import (
    FewTokensFp8,
    FewTokensFp8Plain,
    FewTokensInt8,
    FewTokensInt8Plain,
)
from serve.kernels.products.one_token import OneTokenFp8, OneTokenInt8
from serve.kernels.products.product import Inputs, Product, Weight
from serve.kernels.products.sparse.few_tokens import SparseFewTokensFp8, SparseFewTokensInt8
from serve.kernels.products.sparse.lt import SparseLtFp8, SparseLtInt8
from serve.kernels.products.unpack import Unpack
from tests.serve.kernels.products.made_up import (
    dense_of,
    error_of,
    inputs_of,
    on_gpu,
    packed_weight,
    weight_of,
)

ROUNDING = 0.003
"""Results are float16 or, on the way, bfloat16."""
DENSE = [FewTokensInt8(), FewTokensFp8(), FewTokensFp8Plain(), FewTokensInt8Plain()]
SPARSE = [SparseFewTokensInt8(), SparseFewTokensFp8()]
REFUSABLE = [SparseLtInt8(), SparseLtFp8()]


def moved(weight: Weight, inputs: Inputs) -> tuple[Weight, Inputs]:
    assert inputs.rounded is not None
    assert inputs.scales is not None
    return (
        on_gpu(weight),
        Inputs(inputs.plain.cuda(), inputs.rounded.cuda(), inputs.scales.cuda()),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 5, 16])
@pytest.mark.parametrize(
    "product",
    [*DENSE, *SPARSE, OneTokenFp8(), OneTokenInt8()],
    ids=lambda product: product.name,
)
def test_every_candidate(product: Product, tokens: int) -> None:
    if product.most is not None and tokens > product.most:
        pytest.skip("takes one token")
    torch.manual_seed(0)
    rows, columns = 1088, 1536  # no whole blocks of 128 rows
    weight = weight_of(product.weight_dtype, rows, columns, sparse=product in SPARSE)
    weight, inputs = moved(weight, inputs_of(weight, tokens))
    tensors = product.prepare(weight)
    right = dense_of(weight, inputs, product.reads_rounded)
    for options in product.options(rows, columns, tokens):
        first = product.multiply(inputs, tensors, options)
        assert error_of(first, right) < ROUNDING, options
        assert torch.equal(product.multiply(inputs, tensors, options), first), options


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [3, 16, 100])
@pytest.mark.parametrize("product", REFUSABLE, ids=lambda product: product.name)
def test_cusparselt(product: Product, tokens: int) -> None:
    """It refuses some algorithms; those that it takes are right, planned by us or by PyTorch."""
    torch.manual_seed(0)
    weight = weight_of(product.weight_dtype, 1024, 1536, sparse=True)
    weight, inputs = moved(weight, inputs_of(weight, tokens))
    tensors = product.prepare(weight)
    right = dense_of(weight, inputs, reads_rounded=True)
    for planned in (0, 1):
        ran = 0
        for options in product.options(1024, 1536, tokens):
            asked = tuple(sorted({**dict(options), "PLANNED": planned}.items()))
            try:
                out = product.multiply(inputs, tensors, asked)
            except RuntimeError:
                continue
            ran += 1
            assert error_of(out, right) < ROUNDING, asked
        assert ran


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
def test_unpacking(bits: int) -> None:
    torch.manual_seed(0)
    weight, right = packed_weight(3000, 1024, bits, 128, has_zeros=True)
    x = torch.randn(130, 1024).half().cuda()
    product = Unpack()
    for options in product.options(3000, 1024, 130):
        out = product.multiply(Inputs(x), product.prepare(on_gpu(weight)), options)
        assert error_of(out, x.double() @ right.cuda().t()) < ROUNDING, options
