"""FP8 activations times packed INT4 weights: the kernel's source on a CPU against float64,
candidates, refusals, and the copy of the weights that products share."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.linear.catalog import PACKED_FP8
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES
from serve.kernels.products.cuda_kernels.warpgroup.variant import ARCHITECTURE, Numbers, Variant
from serve.kernels.products.product import Inputs, Unusable, Weight
from serve.kernels.products.streamed.group_cutting import MOST_GROUPS, blocks_of, variant_of
from serve.kernels.products.streamed.packed_layout import packed
from serve.kernels.products.streamed.w4a8 import FP8, StreamedW4A8, check, numbers_of
from tests.serve.kernels.products import nvrtc
from tests.serve.kernels.products.made_up import error_of, on_gpu, packed_weight
from tests.serve.kernels.products.streamed import groups_on_cpu

QWEN_8B = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
OTHERS = [(48, 256), (3584, 18944), (57344, 8192), (100, 128)]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def numbers(dtype: str, scale_dtype: str) -> Numbers:
    return Numbers("e4m3", dtype, scale_dtype)


def made(
    rows: int, columns: int, tokens: int, dtype: str, scale_dtype: str
) -> tuple[Weight, Inputs, torch.Tensor]:
    """A weight with all codes, activations of all sizes, and the right product."""
    weight, right = packed_weight(rows, columns, 4, 128, has_zeros=False)
    rounded = weight.scales.to(DTYPES[scale_dtype])
    right *= (rounded.double() / weight.scales.double()).repeat_interleave(128, dim=1)
    x = torch.randn(tokens, columns) * torch.tensor([0.01, 1, 90])[torch.arange(tokens) % 3, None]
    scales = torch.rand(tokens, 1) + 0.1
    inputs = Inputs(torch.empty(tokens, 0, dtype=DTYPES[dtype]), x.to(FP8), scales)
    product = (x.to(FP8).double() * scales.double()) @ right.t()
    return replace(weight, scales=rounded), inputs, product


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "variant"),
    [
        (72, 896, 13, Variant(1, 4, 2, 1, 1, 16, numbers("f16", "f16"))),
        (128, 640, 17, Variant(2, 4, 1, 2, 1, 32, numbers("f16", "bf16"))),
        (190, 256, 100, Variant(3, 4, 2, 1, 1, 128, numbers("bf16", "bf16"))),
        (150, 896, 20, Variant(1, 4, 2, 2, 2, 32, numbers("bf16", "bf16"))),
    ],
    ids=["rows in two blocks", "columns in a cluster", "two products", "shared activations"],
)
def test_the_source_on_a_cpu(
    rows: int, columns: int, tokens: int, variant: Variant, tmp_path: Path
) -> None:
    """Rows that fill no tile, tokens that fill no product, steps that fill no stage."""
    torch.manual_seed(0)
    dtype, scale_dtype = variant.numbers.out, variant.numbers.scales
    weight, inputs, right = made(rows, columns, tokens, dtype, scale_dtype)
    assert inputs.rounded is not None
    clusters = blocks_of(variant, rows) // (variant.split * variant.team)
    for found in groups_on_cpu.products(
        variant, inputs.rounded, inputs.scales, packed(weight), clusters, tmp_path
    ):
        for token in range(tokens):
            assert error_of(found[token], right[token]) < 0.004


def test_products_share_a_copy_of_the_weights() -> None:
    weight, _ = packed_weight(16, 256, 4, 128, has_zeros=False)
    first = packed(weight).tensors
    pointers = [tensor.data_ptr() for tensor in first]
    assert [tensor.data_ptr() for tensor in packed(weight).tensors] == pointers
    assert packed(replace(weight)).codes.data_ptr() != pointers[0]
    (places,) = PACKED_FP8.values()
    layouts = {place.name: place.layout for place in places}
    assert layouts["StreamedW4A8"] == layouts["StreamedPacked"]


@pytest.mark.parametrize(("rows", "columns"), [*QWEN_8B, *OTHERS])
def test_candidates_are_launchable(rows: int, columns: int) -> None:
    product, steps = StreamedW4A8(), columns // 128
    bfloat = numbers_of(torch.bfloat16, torch.bfloat16)
    for tokens in (9, 16, 17, 33, 64, 100, 128):
        candidates = product.options(rows, columns, tokens)
        assert 1 <= len(candidates) <= 16
        assert len(set(candidates)) == len(candidates)
        for options in candidates:
            variant = variant_of(bfloat, options, tokens)
            assert variant.shared_bytes(tokens, steps) <= MOST_SHARED_BYTES
            assert variant.tokens >= tokens
            assert variant.groups <= MOST_GROUPS[variant.tokens]
            assert variant.threads <= 1024
            blocks = blocks_of(variant, rows)
            assert blocks % (variant.split * variant.team) == 0
            assert variant.split * variant.team <= 8
            assert blocks // variant.split * variant.rows >= rows
            assert (variant.split - 1) * -(-steps // variant.split) < steps


def test_options_of_fewer_tokens_lose_none() -> None:
    (options, *_) = StreamedW4A8().options(64, 128, 9)
    assert variant_of(numbers("bf16", "bf16"), options, 65).tokens == 128


def test_refusals() -> None:
    weight, _ = packed_weight(16, 256, 4, 128, has_zeros=False)
    for change, reason in (
        ({"group_size": 64}, "groups of 128"),
        ({"group_size": None}, "groups of 128"),
        ({"zeros": torch.full((16, 2), 8)}, "symmetric"),
        ({"bits": 8}, "4-bit"),
    ):
        with pytest.raises(Unusable, match=reason):
            check(replace(weight, **change))
    with pytest.raises(Unusable, match="NVIDIA GPU"):
        StreamedW4A8().prepare(weight)


def test_the_source_compiles() -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    for variant in (
        Variant(3, 4, 4, 1, 2, 64, numbers("bf16", "bf16")),
        Variant(3, 4, 4, 2, 1, 128, numbers("f16", "f16")),
    ):
        assert nvrtc.errors(library, variant.source(), ARCHITECTURE) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [9, 16, 17, 33, 64, 100, 128])
def test_every_candidate_on_a_gpu(tokens: int) -> None:
    torch.manual_seed(0)
    rows, columns = 1096, 1920
    weight, inputs, right = made(rows, columns, tokens, "bf16", "bf16")
    weight = on_gpu(weight)
    assert inputs.rounded is not None
    assert inputs.scales is not None
    given = Inputs(inputs.plain.cuda(), inputs.rounded.cuda(), inputs.scales.cuda())
    product = StreamedW4A8()
    tensors = product.prepare(weight)
    for options in product.options(rows, columns, tokens):
        found = product.multiply(given, tensors, options)
        assert error_of(found.cpu(), right) < 0.004, options
        assert torch.equal(found, product.multiply(given, tensors, options))
        unscaled = product.multiply(replace(given, scales=None), tensors, options)
        assert error_of(unscaled.cpu() * inputs.scales, right) < 0.005, options
