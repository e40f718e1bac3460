"""2:4 weights that are streamed into sparse tensor cores: packing, the kernel's arithmetic."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.products.cuda_kernels.streamed_sparse import Variant
from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.launch import SHARED_MEMORY
from serve.kernels.products.product import Inputs, Unusable
from serve.kernels.products.streamed.sparse import (
    FALLBACK,
    SHAPES,
    SPLITS,
    StreamedSparse,
    StreamedSparseFp8,
    StreamedSparseInt8,
    clusters_of,
    fitting,
    options_from,
)
from serve.kernels.products.streamed.sparse_layout import pack, units_of, unpack
from tests.serve.kernels.products import nvrtc
from tests.serve.kernels.products.made_up import (
    codes_of,
    dense_of,
    error_of,
    inputs_of,
    on_gpu,
    pruned,
    weight_of,
)
from tests.serve.kernels.products.streamed import cuda_on_cpu
from tests.serve.kernels.products.streamed import emulated_sparse as emulated

PRODUCTS = [StreamedSparseInt8(), StreamedSparseFp8()]
LAYERS = [
    *((24576, 4096), (4096, 12288), (6144, 4096), (4096, 4096)),
    *((3584, 18944), (1024, 896), (64, 256), (8192, 28672)),
]


@pytest.mark.parametrize("dtype", [torch.int8, FP8])
@pytest.mark.parametrize("columns", [512, 320])
def test_layout_is_lossless(dtype: torch.dtype, columns: int) -> None:
    codes = pruned(codes_of(dtype, 48, columns))
    packed = pack(codes)
    assert packed.numel() == 48 * units_of(columns) * 256 * 10 // 16
    assert torch.equal(unpack(packed, columns, dtype).float(), codes.float())  # -0.0 becomes 0.0


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("is_float", [False, True])
def test_every_code_is_widened_exactly(is_float: bool, dtype: str) -> None:
    codes = torch.arange(256)
    right = codes.to(torch.uint8).view(FP8 if is_float else torch.int8).double()
    known = ~right.isnan()
    for place in range(4):
        shifted = codes[known] << 8 * place | 0xA5A5A5A5 & ~(0xFF << 8 * place)
        pair = emulated.widened(shifted, is_float, dtype)[place & 1]
        assert torch.equal(pair[:, place >> 1], right[known])


@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "warps", "split", "clusters"),
    [
        (48, 320, 1, 2, 1, 2),
        (32, 1024, 9, 1, 2, 1),
        (32, 1280, 3, 4, 1, 2),
        (16, 1088, 16, 1, 4, 1),
    ],
)
def test_the_kernels_arithmetic(
    is_float: bool, rows: int, columns: int, tokens: int, warps: int, split: int, clusters: int
) -> None:
    weight = weight_of(FP8 if is_float else torch.int8, rows, columns, sparse=True)
    x = torch.randn(tokens, columns).bfloat16()
    variant = Variant(warps, 8 if tokens <= 8 else 16, 2, True, split, 1, is_float, "bf16")
    found = emulated.product(x, pack(weight.codes), weight.scales[:, 0], variant, clusters)
    assert error_of(found, dense_of(weight, Inputs(x), reads_rounded=False)) < 1e-9


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "clusters", "variant"),
    [
        (96, 576, 1, 2, Variant(2, 8, 2, True, 1, 1, False, "bf16")),
        (64, 1024, 5, 1, Variant(1, 8, 3, False, 1, 1, True, "f16")),
        (96, 1088, 9, 2, Variant(2, 16, 2, True, 2, 1, True, "bf16")),
    ],
    ids=["shared memory", "registers", "cluster"],
)
def test_the_source_on_a_cpu(
    rows: int, columns: int, tokens: int, clusters: int, variant: Variant, tmp_path: Path
) -> None:
    weight = weight_of(FP8 if variant.is_float else torch.int8, rows, columns, sparse=True)
    x = torch.randn(tokens, columns).to(emulated.DTYPES[variant.dtype])
    right = dense_of(weight, Inputs(x), reads_rounded=False)
    library = cuda_on_cpu.sparse_kernel(variant, tmp_path)
    packed, scales = pack(weight.codes), weight.scales.reshape(-1).contiguous()
    for at_once in (False, True):
        found = cuda_on_cpu.sparse_product(library, variant, x, packed, scales, clusters, at_once)
        assert error_of(found, right) < 0.004


@pytest.mark.parametrize(("rows", "columns"), LAYERS)
@pytest.mark.parametrize("tokens", [1, 5, 8, 16])
def test_candidates_are_launchable(rows: int, columns: int, tokens: int) -> None:
    product, units = StreamedSparseInt8(), units_of(columns)
    candidates = product.options(rows, columns, tokens)
    assert 1 <= len(candidates) <= 24
    assert len(set(candidates)) == len(candidates)
    for options in candidates:
        variant = product.variant(options, tokens, torch.bfloat16)
        assert fitting(variant, tokens, units) == variant
        assert variant.tokens >= tokens
        assert variant.shared_bytes(tokens, units) <= SHARED_MEMORY
        assert variant.warps <= units // variant.split, "each warp needs a unit"
        clusters = clusters_of(variant, tokens, units, rows, 132)
        assert 1 <= clusters <= rows // 16


def test_a_plan_for_fewer_tokens_takes_more() -> None:
    """Activations of 16 tokens need more shared memory, and more blocks share them then."""
    product, units = StreamedSparseInt8(), units_of(12288)
    (options, *_) = product.options(4096, 12288, 1)
    wanted = product.variant(options, 16, torch.float16)
    variant = fitting(wanted, 16, units)
    assert wanted.tokens == 16
    assert variant.split > wanted.split
    assert variant.shared_bytes(16, units) <= SHARED_MEMORY


def test_refusals() -> None:
    weight = weight_of(torch.int8, 64, 512, sparse=True)
    for product, wrong, reason in (
        (StreamedSparseInt8(), weight_of(FP8, 64, 512, sparse=True), "not torch.int8"),
        (StreamedSparseInt8(), weight_of(torch.int8, 64, 512), "not 2:4 sparse"),
        (StreamedSparseInt8(), weight_of(torch.int8, 40, 512, sparse=True), "40 x 512"),
        (StreamedSparseInt8(), replace(weight, group_size=128), "one scale for each row"),
        (StreamedSparseInt8(), weight, "NVIDIA GPU"),
    ):
        with pytest.raises(Unusable, match=reason):
            product.prepare(wrong)
    with pytest.raises(Unusable, match="do not fit"):
        fitting(FALLBACK, 16, units_of(1 << 17))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("is_float", [False, True])
def test_the_source_compiles(is_float: bool, dtype: str) -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    for tokens, is_ring, split in ((8, True, 1), (16, False, 2), (8, False, 1), (16, True, 4)):
        variant = Variant(8, tokens, 2, is_ring, split, 2, is_float, dtype)
        assert nvrtc.errors(library, variant.source()) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16])
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_every_candidate_on_a_gpu(product: StreamedSparse, tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, columns = 1088, 4160  # the last unit is not full
    weight = weight_of(product.weight_dtype, rows, columns, sparse=True)
    weight = on_gpu(weight)
    x = inputs_of(weight_of(torch.int8, 1, columns), tokens).plain.to(dtype).cuda()
    right = dense_of(weight, Inputs(x), reads_rounded=False)
    tensors = product.prepare(weight)
    candidates = product.options(rows, columns, tokens)
    for split in SPLITS:
        for warps, blocks, depth, is_ring in SHAPES:
            room = 8 if tokens <= 8 else 16
            variant = Variant(warps, room, depth, is_ring, split, blocks, False, "bf16")
            candidates.append(options_from(variant))
    for options in candidates:
        first = product.multiply(Inputs(x), tensors, options)
        assert error_of(first, right) < 0.004, options
        assert torch.equal(product.multiply(Inputs(x), tensors, options), first), options
