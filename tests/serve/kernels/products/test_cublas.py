"""FP8 products through PyTorch: the same call runs cuBLAS on a GPU."""

from dataclasses import replace

import pytest
import torch

from serve.kernels.plans.proof import Proof
from serve.kernels.plans.search import Prepared
from serve.kernels.products.cublas import CublasFp8
from serve.kernels.products.product import Unusable, Weight

FP8 = torch.float8_e4m3fn
PRODUCT = CublasFp8()


@pytest.fixture
def weight() -> Weight:
    torch.manual_seed(0)
    codes = (torch.randn(64, 128) * 50).to(FP8)
    return Weight(codes, torch.rand(64, 1) * 0.01 + 0.001, 8, 128)


@pytest.mark.parametrize("scales", [None, torch.tensor(0.5)], ids=["by row", "one"])
def test_it_is_right(weight: Weight, scales: torch.Tensor | None) -> None:
    if scales is not None:
        weight = replace(weight, scales=scales.expand(64, 1))
    candidate = Prepared(PRODUCT, PRODUCT.prepare(weight))
    Proof(weight, FP8, torch.bfloat16).check(candidate)


def test_the_caller_may_apply_the_scales_of_tokens(weight: Weight) -> None:
    proof = Proof(weight, FP8, torch.bfloat16)
    tensors = PRODUCT.prepare(weight)
    inputs = proof.inputs
    assert inputs.scales is not None
    sums = PRODUCT.multiply(replace(inputs, scales=None), tensors, ())
    whole = PRODUCT.multiply(inputs, tensors, ())
    torch.testing.assert_close(sums.float() * inputs.scales, whole.float(), rtol=0.02, atol=0.02)


def test_the_weight_is_not_copied(weight: Weight) -> None:
    assert PRODUCT.prepare(weight)[0].data_ptr() == weight.codes.data_ptr()


def test_what_it_cannot_run_is_said(weight: Weight) -> None:
    for other, reason in (
        (replace(weight, codes=weight.codes.view(torch.int8)), "weights are torch.int8"),
        (replace(weight, group_size=64), "one scale for each row"),
        (replace(weight, columns=120), "64 x 120 is no multiple of 16"),
    ):
        with pytest.raises(Unusable, match=reason):
            PRODUCT.prepare(other)
