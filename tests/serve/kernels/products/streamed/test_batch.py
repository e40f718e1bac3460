"""16-bit activations times packed integers by warp groups: the kernel's source on a CPU against
float64, candidates, and refusals."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.linear.catalog import PACKED
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES
from serve.kernels.products.cuda_kernels.warpgroup.variant import ARCHITECTURE, Numbers, Variant
from serve.kernels.products.product import Inputs, Unusable, Weight
from serve.kernels.products.streamed.batch import USUAL, StreamedBatch, check, numbers_of
from serve.kernels.products.streamed.group_cutting import MOST_GROUPS, blocks_of, variant_of
from serve.kernels.products.streamed.packed_layout import packed
from tests.serve.kernels.products import nvrtc
from tests.serve.kernels.products.made_up import error_of, on_gpu, packed_weight
from tests.serve.kernels.products.streamed import groups_on_cpu

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (48, 256), (57344, 8192)]


def numbers(dtype: str, bits: int, groups: int, zeros: bool) -> Numbers:
    return Numbers(dtype, dtype, dtype, bits, groups, zeros)


def made(
    of: Numbers, rows: int, columns: int, tokens: int
) -> tuple[Weight, torch.Tensor, torch.Tensor]:
    """A weight with all codes, activations, and the right product."""
    size = 128 // of.groups if of.groups else None
    weight, right = packed_weight(rows, columns, of.bits, size, of.zeros)
    scales = weight.scales.to(DTYPES[of.scales])
    changed = scales.double() / weight.scales.double()
    right *= changed.repeat_interleave(size or columns, dim=1)
    x = torch.randn(tokens, columns).to(DTYPES[of.x])
    return replace(weight, scales=scales), x, x.double() @ right.t()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "variant"),
    [
        (72, 640, 27, Variant(1, 8, 2, 1, 1, 32, numbers("f16", 4, 1, False))),
        (128, 640, 17, Variant(2, 8, 2, 2, 1, 32, numbers("bf16", 8, 2, False))),
        (190, 256, 60, Variant(3, 8, 2, 1, 1, 64, numbers("bf16", 4, 1, True))),
        (150, 384, 20, Variant(1, 8, 2, 2, 1, 32, numbers("bf16", 8, 0, False))),
        (64, 384, 50, Variant(1, 4, 2, 1, 1, 64, numbers("f16", 8, 1, True))),
    ],
    ids=["groups of 128", "groups of 64", "three groups of warps", "channels", "one copier"],
)
def test_the_source_on_a_cpu(
    rows: int, columns: int, tokens: int, variant: Variant, tmp_path: Path
) -> None:
    """Rows that fill no tile, tokens that fill no product, steps that fill no stage."""
    torch.manual_seed(0)
    weight, x, right = made(variant.numbers, rows, columns, tokens)
    assert numbers_of(packed(weight), x.dtype) == variant.numbers
    clusters = blocks_of(variant, rows) // (variant.split * variant.team)
    for found in groups_on_cpu.products(variant, x, None, packed(weight), clusters, tmp_path):
        for token in range(tokens):
            assert error_of(found[token], right[token]) < 0.004


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("tokens", [17, 33, 64])
def test_candidates_are_launchable(rows: int, columns: int, tokens: int) -> None:
    steps = columns // 128
    candidates = StreamedBatch().options(rows, columns, tokens)
    assert 1 <= len(candidates) <= 16
    assert len(set(candidates)) == len(candidates)
    for options in candidates:
        variant = variant_of(USUAL[0], options, tokens)
        assert variant.shared_bytes(tokens, steps) <= MOST_SHARED_BYTES
        assert variant.tokens >= tokens
        assert variant.groups <= MOST_GROUPS[variant.tokens]
        assert variant.split * variant.team <= 8
        assert blocks_of(variant, rows) % (variant.split * variant.team) == 0
        assert blocks_of(variant, rows) // variant.split * variant.rows >= rows


def test_it_reads_the_copy_of_streamed_packed() -> None:
    layouts = {place.name: place.layout for places in PACKED.values() for place in places}
    assert layouts["StreamedBatch"] == layouts["StreamedPacked"]


def test_refusals() -> None:
    weight, _ = packed_weight(16, 256, 4, 128, has_zeros=False)
    check(weight)
    narrow, _ = packed_weight(16, 192, 4, 64, has_zeros=False)
    for refused, reason in (
        (replace(weight, group_size=32), "groups of 32"),
        (narrow, "192 columns"),
        (replace(weight, columns=1 << 21), "exceed the shared memory"),
    ):
        with pytest.raises(Unusable, match=reason):
            check(refused)
    with pytest.raises(Unusable, match="NVIDIA GPU"):
        StreamedBatch().prepare(weight)


def test_the_source_compiles() -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    for variant in (
        Variant(3, 8, 4, 1, 1, 64, numbers("bf16", 8, 1, False)),
        Variant(2, 8, 2, 2, 1, 32, numbers("f16", 4, 2, True)),
    ):
        assert nvrtc.errors(library, variant.source(), ARCHITECTURE) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [17, 33, 64])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("groups", [0, 1, 2])
@pytest.mark.parametrize(("bits", "dtype"), [(4, "bf16"), (4, "f16"), (8, "bf16"), (8, "f16")])
def test_every_candidate_on_a_gpu(
    bits: int, dtype: str, groups: int, zeros: bool, tokens: int
) -> None:
    torch.manual_seed(0)
    rows, columns = 1096, 1920
    weight, x, right = made(numbers(dtype, bits, groups, zeros), rows, columns, tokens)
    product, x = StreamedBatch(), x.cuda()
    tensors = product.prepare(on_gpu(weight))
    for options in product.options(rows, columns, tokens):
        found = product.multiply(Inputs(x), tensors, options)
        assert error_of(found.cpu(), right) < 0.004, options
        assert torch.equal(found, product.multiply(Inputs(x), tensors, options))
