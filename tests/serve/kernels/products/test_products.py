"""Products without their kernels: candidates, stored layouts and reasons of refusal."""

import pytest
import torch

from serve.kernels.products.few_tokens import FP8, FewTokensFp8Plain, FewTokensInt8
from serve.kernels.products.launch import SHARED_MEMORY
from serve.kernels.products.one_token import OneTokenFp8
from serve.kernels.products.product import Product, Unusable, Weight
from serve.kernels.products.sparse.few_tokens import SparseFewTokensInt8
from serve.kernels.products.sparse.layout import pack, unpack
from serve.kernels.products.sparse.lt import SparseLtFp8, SparseLtInt8, is_sparse24, padded
from serve.kernels.products.unpack import Unpack, UnpackFp8
from tests.serve.kernels.products.made_up import codes_of, packed_weight, pruned, weight_of

QWEN_8B = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
OTHERS = [(48, 256), (3584, 18944), (2560, 9728)]


@pytest.mark.parametrize("dtype", [torch.int8, FP8])
@pytest.mark.parametrize("columns", [1024, 768])
def test_sparse_layout_is_lossless(dtype: torch.dtype, columns: int) -> None:
    codes = pruned(codes_of(dtype, 24, columns))
    packed = pack(codes)
    assert packed.shape == (24, columns * 10 // 16)
    assert torch.equal(unpack(packed, columns, dtype).float(), codes.float())  # -0.0 becomes 0.0


def test_is_sparse24() -> None:
    codes = pruned(codes_of(torch.int8, 5000, 64))
    assert is_sparse24(codes)
    codes[4999, 60:63] = 1
    assert not is_sparse24(codes)
    halves = torch.tensor([[1.0, -0.0, 2.0, -0.0]] * 4).to(FP8)
    assert is_sparse24(halves)


def test_tokens_are_padded_to_sixteens() -> None:
    rounded = codes_of(torch.int8, 17, 64)
    assert torch.equal(padded(rounded)[:17], rounded)
    assert padded(rounded).shape == (32, 64)
    whole = codes_of(torch.int8, 32, 64)
    assert padded(whole).data_ptr() == whole.data_ptr()


@pytest.mark.parametrize(("rows", "columns"), [*QWEN_8B, *OTHERS])
@pytest.mark.parametrize("product", [FewTokensInt8(), FewTokensFp8Plain(), SparseFewTokensInt8()])
def test_candidates_fit_the_gpu(product: Product, rows: int, columns: int) -> None:
    for tokens in (1, 8, 16):
        candidates = product.options(rows, columns, tokens)
        assert 1 <= len(candidates) <= 24
        assert len(set(candidates)) == len(candidates)
        for options in candidates:
            asked = dict(options)
            width = asked.get("BLOCK_K", 256)
            steps = columns // width
            assert columns % width == 0
            assert asked["TOKENS"] >= min(tokens, 16)
            # Every part of the columns has a step, else it would read past the last one.
            assert -(-steps // asked["SPLIT"]) * (asked["SPLIT"] - 1) < steps
            tile = width * (asked["BLOCK_N"] * 5 // 8 + asked["TOKENS"])
            assert asked["num_stages"] * tile < SHARED_MEMORY


@pytest.mark.parametrize(("rows", "columns"), [*QWEN_8B, *OTHERS])
def test_candidates_of_one_token(rows: int, columns: int) -> None:
    candidates = OneTokenFp8().options(rows, columns, 1)
    assert 1 <= len(candidates) <= 26
    assert len(set(candidates)) == len(candidates)
    assert all(columns % dict(options)["BLOCK_K"] == 0 for options in candidates)


@pytest.mark.parametrize("tokens", [1, 4096])
def test_cusparselt_scales_rows_of_integers_only(tokens: int) -> None:
    floats = [dict(options) for options in SparseLtFp8().options(4096, 4096, tokens)]
    assert all(options["ROW_SCALES"] == 0 and options["SPLIT"] == 1 for options in floats)
    integers = [dict(options) for options in SparseLtInt8().options(4096, 4096, tokens)]
    assert {options["ROW_SCALES"] for options in integers} == {0, 1}
    algorithms = {options["ALGORITHM"] for options in integers}
    assert {options["ALGORITHM"] for options in floats} == algorithms, "all are searched"


def test_refusals() -> None:
    dense = weight_of(torch.int8, 64, 512)
    for product, weight, reason in (
        (FewTokensInt8(), weight_of(FP8, 64, 512), "not torch.int8"),
        (FewTokensInt8(), weight_of(torch.int8, 64, 40), "40 columns"),
        (SparseFewTokensInt8(), dense, "not 2:4 sparse"),
        (SparseLtInt8(), weight_of(torch.int8, 40, 512, sparse=True), "40 x 512"),
        (SparseFewTokensInt8(), weight_of(torch.int8, 32, 320, sparse=True), "320 columns"),
        (Unpack(), dense, "packed integers"),
        (UnpackFp8(), packed_weight(8, 128, 4, 64, has_zeros=True)[0], "symmetric"),
        (UnpackFp8(), packed_weight(8, 128, 8, 64, has_zeros=False)[0], "4 bits"),
    ):
        with pytest.raises(Unusable, match=reason):
            product.prepare(weight)


def test_a_weight_that_only_claims_to_be_sparse_is_refused() -> None:
    weight = Weight(codes_of(torch.int8, 32, 512), torch.ones(32, 1), 8, 512, sparse=True)
    with pytest.raises(Unusable, match="not 2:4 sparse"):
        SparseFewTokensInt8().prepare(weight)
