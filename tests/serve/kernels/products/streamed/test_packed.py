"""Packed integers that are streamed into tensor cores: packing, the kernel's arithmetic lane by
lane against float64, candidates, refusals."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.products.cuda_kernels.streamed_packed import Variant
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES
from serve.kernels.products.product import Inputs, Unusable, Weight
from serve.kernels.products.streamed.cutting import launch_of
from serve.kernels.products.streamed.packed import StreamedPacked, variant_of
from serve.kernels.products.streamed.packed_layout import Packed, packed
from tests.serve.kernels.products import nvrtc
from tests.serve.kernels.products.made_up import error_of, on_gpu, packed_weight
from tests.serve.kernels.products.streamed import streaming_on_cpu
from tests.serve.kernels.products.streamed.emulated_packed import DTYPES, Emulated

QWEN_8B = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
OTHERS = [(48, 256), (3584, 18944), (2560, 9728), (151936, 4096), (100, 72)]
GROUPS = [(None, 0), (128, 1), (64, 2), (32, 4)]


def made(
    rows: int, columns: int, bits: int, group: int | None, zeros: bool, scales: str
) -> tuple[Weight, torch.Tensor]:
    """A weight whose scales are of that type, and what it stands for."""
    weight, right = packed_weight(rows, columns, bits, group, zeros)
    rounded = weight.scales.to(DTYPES[scales])
    ratio = rounded.double() / weight.scales.double()
    right *= ratio.repeat_interleave(group or columns, dim=1)
    return replace(weight, scales=rounded), right


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("group", "groups"), GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_kernels_arithmetic(
    bits: int, group: int | None, groups: int, zeros: bool, dtype: str
) -> None:
    """Rows that fill no tile, columns that fill no step, and steps that no warp has."""
    torch.manual_seed(0)
    columns, tokens = (384, 5) if group == 128 else (320, 3)
    weight, right = made(24, columns, bits, group, zeros, dtype)
    tensors = packed(weight)
    groups = 1 if zeros and group is None else groups
    variant = Variant(2, 1, 1, 1, 2, bits, groups, zeros, 1, dtype, dtype)
    x = torch.randn(tokens, columns).to(DTYPES[dtype])
    found = Emulated(variant, tensors, x, blocks=2).run()
    assert error_of(found, x.double() @ right.t()) < 1e-6


@pytest.mark.parametrize(
    ("warps", "tiles", "prefetch", "split", "blocks"),
    [(1, 1, 1, 1, 2), (4, 1, 2, 1, 1), (2, 4, 1, 1, 1), (1, 2, 2, 4, 8)],
)
def test_every_way_to_share_the_work(
    warps: int, tiles: int, prefetch: int, split: int, blocks: int
) -> None:
    torch.manual_seed(1)
    weight, right = made(40, 512, 4, 128, False, "f16")
    variant = Variant(warps, tiles, prefetch, 1, split, 4, 1, False, 2, "bf16", "f16")
    x = torch.randn(11, 512).to(torch.bfloat16)
    found = Emulated(variant, packed(weight), x, blocks).run()
    assert error_of(found, x.double() @ right.t()) < 1e-6


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("bits", "group", "zeros", "tokens", "clusters", "variant"),
    [
        (4, 128, False, 1, 2, Variant(2, 1, 2, 1, 1, 4, 1, False, 1, "bf16", "bf16")),
        (8, 64, True, 11, 1, Variant(2, 2, 1, 1, 2, 8, 2, True, 2, "f16", "f16")),
        (8, None, False, 3, 2, Variant(1, 1, 1, 1, 2, 8, 0, False, 1, "bf16", "bf16")),
    ],
    ids=["int4", "groups in a cluster", "rows"],
)
def test_the_source_on_a_cpu(
    bits: int,
    group: int | None,
    zeros: bool,
    tokens: int,
    clusters: int,
    variant: Variant,
    tmp_path: Path,
) -> None:
    torch.manual_seed(2)
    weight, right = made(72, 640, bits, group, zeros, variant.dtype)
    x = torch.randn(tokens, 640).to(DTYPES[variant.dtype])
    for found in streaming_on_cpu.packed_product(variant, x, packed(weight), clusters, tmp_path):
        assert error_of(found, x.double() @ right.t()) < 0.004


def test_all_codes_are_exact() -> None:
    """Each code times one, with the lowest and the highest zero point."""
    for bits in (4, 8):
        count = 1 << bits
        codes = torch.arange(16 * 128) % count
        shifts = torch.arange(0, 32, bits)
        words = (codes.view(16, -1, 32 // bits) << shifts).sum(-1)
        words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
        zeros = torch.tensor([0, count - 1] * 8).view(16, 1)
        for dtype in ("bf16", "f16"):
            scales = torch.ones(16, 1, dtype=DTYPES[dtype])
            weight = Weight(words, scales, bits, 128, zeros, 128)
            variant = Variant(1, 1, 1, 1, 1, bits, 1, True, 1, dtype, dtype)
            for column in range(0, 128, 37):
                x = torch.zeros(1, 128, dtype=DTYPES[dtype])
                x[0, column] = 1
                found = Emulated(variant, packed(weight), x, blocks=1).run()
                assert torch.equal(found[0], (codes.view(16, 128)[:, column] - zeros[:, 0]).float())


def test_packing_needs_no_more_memory_than_the_checkpoint() -> None:
    weight, _ = packed_weight(64, 1024, 4, 128, has_zeros=False)
    tensors = packed(weight).tensors
    assert sum(t.numel() * t.element_size() for t in tensors) == 64 * 1024 // 2 + 64 * 8 * 2


@pytest.mark.parametrize(("rows", "columns"), [*QWEN_8B, *OTHERS])
def test_candidates_are_launchable(rows: int, columns: int) -> None:
    product, packed_rows = StreamedPacked(), -(-rows // 16)
    empty = torch.empty(0, dtype=torch.int32)
    for bits in (4, 8):
        codes = torch.empty((packed_rows, 0, bits // 2, 32, 4), dtype=torch.int32)
        weight = Packed(codes, empty, torch.empty(rows, 1))
        for tokens in (1, 8, 9, 16):
            candidates = product.options(rows, columns, tokens)
            assert 1 <= len(candidates) <= 16
            assert len(set(candidates)) == len(candidates)
            for options in candidates:
                variant = variant_of(weight, options, tokens, torch.bfloat16)
                launch = launch_of(variant, rows, columns, tokens, 132)
                assert launch.shared_bytes <= MOST_SHARED_BYTES
                assert launch.blocks % variant.split == 0
                assert variant.narrows * 8 >= tokens
                parts = -(-packed_rows // variant.tiles)
                assert launch.blocks // variant.split * launch.rounds >= parts


def test_options_of_fewer_tokens_lose_none() -> None:
    weight = packed(packed_weight(16, 128, 4, None, has_zeros=False)[0])
    (options, *_) = StreamedPacked().options(16, 128, 1)
    assert variant_of(weight, options, 16, torch.float16).narrows == 2


def test_refusals() -> None:
    weight, _ = packed_weight(16, 256, 4, 64, has_zeros=True)
    for change, reason in (
        ({"group_size": 16}, "groups of 16"),
        ({"scales": weight.scales.float()}, "16-bit scales"),
        ({"zeros": torch.full((16, 4), 16)}, "zero points of 4 bits"),
        ({"codes": weight.codes.to(torch.int8)}, "packed integers"),
    ):
        with pytest.raises(Unusable, match=reason):
            packed(replace(weight, **change))
    with pytest.raises(Unusable, match="NVIDIA GPU"):
        StreamedPacked().prepare(weight)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_source_compiles(dtype: str) -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    for variant in (
        Variant(8, 1, 4, 3, 1, 4, 1, False, 1, dtype, dtype),
        Variant(8, 2, 1, 2, 4, 8, 4, True, 2, dtype, dtype),
        Variant(16, 2, 2, 1, 2, 8, 0, False, 2, dtype, dtype),
    ):
        assert nvrtc.errors(library, variant.source()) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 7, 8, 16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [None, 32, 128])
@pytest.mark.parametrize("zeros", [False, True])
def test_every_candidate_on_a_gpu(tokens: int, bits: int, group: int | None, zeros: bool) -> None:
    torch.manual_seed(0)
    rows, columns = 1096, 1920
    weight, right = made(rows, columns, bits, group, zeros, "f16")
    product = StreamedPacked()
    tensors = product.prepare(on_gpu(weight))
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(tokens, columns, device="cuda").to(dtype)
        expected = x.double() @ right.cuda().t()
        for options in product.options(rows, columns, tokens):
            first = product.multiply(Inputs(x), tensors, options)
            assert error_of(first, expected) < 0.003, options
            assert torch.equal(first, product.multiply(Inputs(x), tensors, options))
