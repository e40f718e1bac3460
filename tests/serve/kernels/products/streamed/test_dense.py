"""INT8 and FP8 weights that are streamed as they are stored: the kernel's arithmetic lane by lane,
its source on a CPU, candidates, refusals."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.products.cuda_kernels.streamed_dense import Variant
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES, TILE
from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.product import Inputs, Unusable, Weight
from serve.kernels.products.streamed.cutting import aligned, launch_of
from serve.kernels.products.streamed.dense import StreamedDense, StreamedFp8, StreamedInt8
from tests.serve.kernels.products import nvrtc
from tests.serve.kernels.products.made_up import dense_of, error_of, on_gpu, weight_of
from tests.serve.kernels.products.streamed import emulated_dense, streaming_on_cpu
from tests.serve.kernels.products.streamed.emulated_sparse import DTYPES

PRODUCTS = [StreamedInt8(), StreamedFp8()]
LAYERS = [
    *((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
    *((48, 256), (3584, 18944), (2560, 9728), (151936, 4096), (100, 80)),
]


def made(rows: int, columns: int, tokens: int, variant: Variant) -> tuple[Weight, torch.Tensor]:
    """A weight and activations for a kernel."""
    torch.manual_seed(rows + columns)
    weight = weight_of(FP8 if variant.is_float else torch.int8, rows, columns)
    return weight, torch.randn(tokens, columns).to(DTYPES[variant.dtype])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize(("columns", "tokens"), [(272, 3), (208, 11)])
def test_the_kernels_arithmetic(columns: int, tokens: int, is_float: bool, dtype: str) -> None:
    """Rows that fill no tile and columns that fill no step."""
    variant = Variant(2, 1, 1, 1, 1, is_float, 1 if tokens <= 8 else 2, dtype)
    weight, x = made(40, columns, tokens, variant)
    found = emulated_dense.product(x, weight.codes, weight.scales, variant)
    assert error_of(found, dense_of(weight, Inputs(x), reads_rounded=False)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 3, 8, 16])
def test_activations_are_read_without_bank_conflicts(tokens: int) -> None:
    for warps, prefetch in ((8, 2), (16, 3), (4, 1)):
        variant = Variant(warps, 1, prefetch, 1, 1, False, 2, "bf16")
        for word in (0, 2):
            at = emulated_dense.addresses(variant, tokens, variant.slots(32), word, 0)
            assert emulated_dense.wavefronts(at) == 1
            assert not (at % 16).any()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "clusters", "variant"),
    [
        (40, 656, 1, 2, Variant(1, 1, 2, 1, 1, False, 1, "bf16")),
        (56, 1040, 5, 1, Variant(2, 2, 1, 1, 1, True, 1, "f16")),
        (36, 1296, 11, 2, Variant(2, 1, 2, 1, 2, True, 2, "bf16")),
        (100, 528, 16, 1, Variant(2, 4, 1, 1, 2, False, 2, "f16")),
    ],
    ids=["one token", "two tiles", "cluster", "16 tokens"],
)
def test_the_source_on_a_cpu(
    rows: int, columns: int, tokens: int, clusters: int, variant: Variant, tmp_path: Path
) -> None:
    weight, x = made(rows, columns, tokens, variant)
    right = dense_of(weight, Inputs(x), reads_rounded=False)
    scales = weight.scales.reshape(-1).contiguous()
    for found in streaming_on_cpu.dense_product(
        variant, x, weight.codes, scales, clusters, tmp_path
    ):
        assert error_of(found, right) < 0.004


@pytest.mark.parametrize(("rows", "columns"), LAYERS)
@pytest.mark.parametrize("tokens", [1, 8, 9, 16])
def test_candidates_are_launchable(rows: int, columns: int, tokens: int) -> None:
    product = StreamedInt8()
    candidates = product.options(rows, columns, tokens)
    assert 1 <= len(candidates) <= 16
    assert len(set(candidates)) == len(candidates)
    for options in candidates:
        variant = product.variant(options, tokens, torch.bfloat16)
        launch = launch_of(variant, rows, columns, tokens, 132)
        assert launch.shared_bytes <= MOST_SHARED_BYTES
        assert launch.blocks % variant.split == 0
        assert variant.narrows * 8 >= tokens
        parts = -(-rows // (TILE * variant.tiles))
        assert launch.blocks // variant.split * launch.rounds >= parts


def test_options_of_fewer_tokens_lose_none() -> None:
    (options, *_) = StreamedInt8().options(64, 256, 1)
    assert StreamedInt8().variant(options, 16, torch.float16).narrows == 2


def test_activations_are_copied_only_where_they_must_be() -> None:
    whole = torch.randn(3, 72).half()
    for x, is_copied in (
        (whole, False), (whole[:, :64], False), (whole[:, 1:65], True), (whole.t(), True)
    ):  # fmt: skip
        ready = aligned(x)
        assert (ready.data_ptr() != x.data_ptr()) == is_copied
        assert torch.equal(ready, x)
        assert ready.stride(1) == 1
        assert ready.data_ptr() % 16 == 0


def test_refusals() -> None:
    weight = weight_of(torch.int8, 32, 256)
    for product, wrong, reason in (
        (StreamedInt8(), weight_of(FP8, 32, 256), "not torch.int8"),
        (StreamedFp8(), weight, "not torch.float8_e4m3fn"),
        (StreamedInt8(), weight_of(torch.int8, 32, 264), "no multiple of 16"),
        (StreamedInt8(), replace(weight, group_size=128), "one scale for each row"),
        (StreamedInt8(), weight, "NVIDIA GPU"),
    ):
        with pytest.raises(Unusable, match=reason):
            product.prepare(wrong)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("is_float", [False, True])
def test_the_source_compiles(is_float: bool, dtype: str) -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    for warps, tiles, prefetch, split, narrows in ((8, 1, 2, 1, 1), (8, 4, 1, 4, 2)):
        variant = Variant(warps, tiles, prefetch, 1, split, is_float, narrows, dtype)
        assert nvrtc.errors(library, variant.source()) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16])
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_every_candidate_on_a_gpu(product: StreamedDense, tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, columns = 1096, 4176  # neither fills its last tile or step
    weight = weight_of(product.weight_dtype, rows, columns)
    weight = on_gpu(weight)
    x = torch.randn(tokens, columns, device="cuda").to(dtype)
    right = dense_of(weight, Inputs(x), reads_rounded=False)
    tensors = product.prepare(weight)
    assert tensors[0].data_ptr() == weight.codes.data_ptr()  # no second copy
    for options in product.options(rows, columns, tokens):
        first = product.multiply(Inputs(x), tensors, options)
        assert error_of(first, right) < 0.004, options
        assert torch.equal(product.multiply(Inputs(x), tensors, options), first), options
