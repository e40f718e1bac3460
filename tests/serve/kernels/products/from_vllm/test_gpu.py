"""vLLM's products on a GPU against float64, for every stored format and every option."""

import pytest
import torch

from serve.kernels.products.from_vllm.marlin_fp8 import MarlinFp8
from serve.kernels.products.from_vllm.packed import (
    CutlassW4A8,
    Machete,
    Marlin,
    rounded_group_scales,
)
from serve.kernels.products.from_vllm.scaled import CutlassFp8, CutlassInt8
from serve.kernels.products.product import Inputs, Product, Weight

pytestmark = pytest.mark.gpu
ROWS, COLUMNS = 512, 1024
TOKENS = (1, 16, 33, 300)
FP8 = torch.float8_e4m3fn


def eight_bit(dtype: torch.dtype) -> tuple[Weight, torch.Tensor]:
    codes = torch.randint(-127, 128, (ROWS, COLUMNS), device="cuda", dtype=torch.int8)
    if dtype == FP8:
        codes = (codes.float() / 2).to(FP8)
    scales = torch.rand(ROWS, 1, device="cuda") * 0.01 + 0.001
    return Weight(codes, scales, 8, COLUMNS), codes.double() * scales.double()


def packed(bits: int, group: int | None, has_zeros: bool) -> tuple[Weight, torch.Tensor]:
    unsigned = torch.randint(0, 2**bits, (ROWS, COLUMNS), device="cuda")
    words = torch.zeros(ROWS, COLUMNS * bits // 32, dtype=torch.int64, device="cuda")
    each = 32 // bits
    for place in range(each):
        words |= unsigned[:, place::each] << (place * bits)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    groups = COLUMNS // (group or COLUMNS)
    scales = (torch.rand(ROWS, groups, device="cuda") * 0.01 + 0.001).to(torch.bfloat16)
    zeros = torch.randint(0, 2**bits, (ROWS, groups), device="cuda", dtype=torch.int32)
    offsets = zeros if has_zeros else torch.full_like(zeros, 2 ** (bits - 1))
    wide = COLUMNS // groups
    dense = (unsigned - offsets.repeat_interleave(wide, 1)) * scales.double().repeat_interleave(
        wide, 1
    )
    return Weight(words, scales, bits, COLUMNS, zeros if has_zeros else None, group), dense


def inputs_of(tokens: int, dtype: torch.dtype | None) -> tuple[Inputs, torch.Tensor]:
    """Activations whose rounded form is exact."""
    if dtype is None:
        plain = torch.randn(tokens, COLUMNS, device="cuda", dtype=torch.bfloat16)
        return Inputs(plain), plain.double()
    codes = torch.randint(-100, 101, (tokens, COLUMNS), device="cuda").float()
    rounded = codes.to(dtype)
    scales = torch.rand(tokens, 1, device="cuda") * 0.1 + 0.01
    exact = rounded.double() * scales.double()
    return Inputs(exact.to(torch.bfloat16), rounded, scales), exact


def check(product: Product, weight: Weight, dense: torch.Tensor, dtype: torch.dtype | None) -> None:
    tensors = product.prepare(weight)
    for tokens in TOKENS:
        inputs, exact = inputs_of(tokens, dtype)
        right = exact @ dense.t()
        for options in product.options(ROWS, COLUMNS, tokens):
            result = product.multiply(inputs, tensors, options)
            assert result.dtype == torch.bfloat16
            off = float((result.double() - right).norm() / right.norm())
            assert off < 0.01, (tokens, options, off)


@pytest.mark.parametrize(
    ("product", "dtype"), [(CutlassInt8(), torch.int8), (CutlassFp8(), FP8)], ids=["int8", "fp8"]
)
def test_eight_bit_products(product: Product, dtype: torch.dtype) -> None:
    check(product, *eight_bit(dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.int8, FP8])
def test_plain_activations_are_rounded_inside(dtype: torch.dtype) -> None:
    weight, dense = eight_bit(dtype)
    product = CutlassInt8() if dtype == torch.int8 else CutlassFp8()
    plain = torch.randn(5, COLUMNS, device="cuda", dtype=torch.bfloat16)
    result = product.multiply(Inputs(plain), product.prepare(weight), ()).double()
    right = plain.double() @ dense.t()
    assert float((result - right).norm() / right.norm()) < 0.05


def test_marlin_with_fp8_weights() -> None:
    check(MarlinFp8(), *eight_bit(FP8), None)


@pytest.mark.parametrize("product", [Marlin(), Machete()], ids=["marlin", "machete"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [128, 64, None])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_packed_products(product: Product, bits: int, group: int | None, has_zeros: bool) -> None:
    if isinstance(product, Marlin) and bits == 8 and has_zeros:
        pytest.skip("Marlin has no such kernel")
    check(product, *packed(bits, group, has_zeros), None)


def test_w4a8_rounds_group_scales_and_scaled_weights() -> None:
    weight, dense = packed(4, 128, False)
    groups, rows = rounded_group_scales(weight.scales)
    codes = dense / weight.scales.double().repeat_interleave(128, 1)
    scaled = (codes * groups.double().repeat_interleave(128, 1)).float().to(FP8)
    check(CutlassW4A8(), weight, scaled.double() * rows.double(), FP8)
