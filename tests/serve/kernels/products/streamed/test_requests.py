"""Kernels that request weights of the next one: their source, on a CPU and for NVRTC, and what the
next product reads first."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serve.kernels.products.cuda_kernels import streamed_dense, streamed_packed
from serve.kernels.products.cuda_kernels.requests import PARTS
from serve.kernels.products.cuda_kernels.streaming import STEP, TILE
from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.product import Inputs, Product
from serve.kernels.products.streamed import dense, packed
from serve.kernels.products.streamed.cutting import launch_of, steps_of
from serve.kernels.products.streamed.packed_layout import Packed
from serve.kernels.products.upcoming import Upcoming, upcoming_of
from tests.serve.kernels.products import nvrtc
from tests.serve.kernels.products.made_up import (
    dense_of,
    error_of,
    packed_weight,
    weight_of,
)
from tests.serve.kernels.products.streamed import streaming_on_cpu

Variant = streamed_dense.Variant | streamed_packed.Variant
VARIANTS: list[Variant] = [
    streamed_dense.Variant(2, 1, 2, 1, 2, True, 1, "bf16"),
    streamed_dense.Variant(1, 2, 1, 1, 1, False, 2, "bf16"),
    streamed_packed.Variant(2, 1, 2, 1, 1, 4, 1, False, 1, "bf16", "bf16"),
    streamed_packed.Variant(1, 1, 1, 1, 2, 8, 0, False, 1, "bf16", "bf16"),
]
INSTRUCTION = "cp.async.bulk.prefetch.L2.global [%0], %1;"
PROCESSORS = 132


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_source_differs_in_requests_only(variant: Variant) -> None:
    alone, requesting = variant.source(), replace(variant, requests=True).source()
    assert "prefetch.L2" not in alone
    assert requesting.count(INSTRUCTION) == 1
    assert requesting.count("request_next(next, next_count, next_bytes, next_pitch);") == 1
    for part in PARTS.values():
        assert requesting.count(part) == 1
        requesting = requesting.replace(part, "")
    assert requesting == alone
    assert "@REQUEST" not in alone


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_source_compiles(variant: Variant) -> None:
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    assert nvrtc.errors(library, replace(variant, requests=True).source()) == ""


NOWHERE = Upcoming(1 << 40, 301, 512, 4096)
"""Nothing is there, and nothing reads it."""


def check(results: list[streaming_on_cpu.Result], right: torch.Tensor) -> None:
    """Each piece is requested once, and results are right."""
    pieces = [(NOWHERE.address + i * NOWHERE.pitch, NOWHERE.piece_bytes) for i in range(301)]
    for result in results:
        assert error_of(result.out, right) < 0.004
        assert sorted(result.requests) == pieces


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_dense_source_on_a_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    variant = streamed_dense.Variant(2, 1, 2, 1, 2, True, 1, "bf16", requests=True)
    weight, x = weight_of(FP8, 40, 1040), torch.randn(3, 1040).to(torch.bfloat16)
    scales = weight.scales.reshape(-1).contiguous()
    results = streaming_on_cpu.dense_product(variant, x, weight.codes, scales, 2, tmp_path, NOWHERE)
    check(results, dense_of(weight, Inputs(x), reads_rounded=False))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_packed_source_on_a_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    variant = streamed_packed.Variant(2, 1, 2, 1, 1, 4, 0, False, 1, "bf16", "bf16", requests=True)
    weight, right = packed_weight(72, 640, 4, None, has_zeros=False)
    x, words = torch.randn(3, 640).to(torch.bfloat16), packed.packed(weight)
    results = streaming_on_cpu.packed_product(variant, x, words, 2, tmp_path, NOWHERE)
    check(results, x.double() @ right.t())


def dense_tensors(rows: int, columns: int) -> list[torch.Tensor]:
    return [torch.empty((rows, columns), dtype=torch.int8), torch.empty(rows)]


def packed_tensors(rows: int, columns: int) -> list[torch.Tensor]:
    codes = torch.empty((-(-rows // TILE), steps_of(columns), 2, 32, 4), dtype=torch.int32)
    return Packed(codes, torch.empty(0, dtype=torch.int32), torch.empty(rows, 1)).tensors


def first_bytes(
    product: Product, tensors: list[torch.Tensor], options: Any, columns: int
) -> set[tuple[int, int]]:
    """Begin and end of what blocks read for their first tiles of rows."""
    chosen, is_packed = dict(options), product.name == "streamed_packed"
    rows, split = tensors[-1].shape[0], chosen["SPLIT"]
    variant: Variant
    if is_packed:
        variant = packed.variant_of(Packed(*tensors), options, 1, torch.bfloat16)
    else:
        variant = dense.StreamedInt8().variant(options, 1, torch.bfloat16)
    launch = launch_of(variant, rows, columns, 1, PROCESSORS)
    steps = steps_of(columns)
    share, height = -(-steps // split), chosen["ROWS"] // TILE if is_packed else chosen["ROWS"]
    last = tensors[0].shape[0]
    row_bytes = tensors[0][0].numel() * tensors[0].element_size()
    step_bytes = row_bytes // steps if is_packed else STEP
    return {
        (line * row_bytes + begin, line * row_bytes + min(begin + share * step_bytes, row_bytes))
        for block in range(launch.blocks)
        for line in range(block // split * height, min((block // split + 1) * height, last))
        for begin in [block % split * share * step_bytes]
    }


@pytest.mark.parametrize(
    ("product", "module", "made"),
    [
        (dense.StreamedInt8(), dense, dense_tensors),
        (packed.StreamedPacked(), packed, packed_tensors),
    ],
    ids=["dense", "packed"],
)
@pytest.mark.parametrize(
    ("rows", "columns"), [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (1096, 1936)]
)
def test_what_is_read_first(
    product: Product,
    module: Any,
    made: Callable[[int, int], list[torch.Tensor]],
    rows: int,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "processors_of", lambda _: PROCESSORS)
    tensors = made(rows, columns)
    for options in product.options(rows, columns, 1):
        reads = product.reads(tensors, options, 1)
        assert reads is not None
        assert reads.tensor is tensors[0]
        ranges = first_bytes(product, tensors, options, columns)
        total = tensors[0].numel() * tensors[0].element_size()
        end = min(reads.first * reads.unit, total)
        assert sum(stop - begin for begin, stop in ranges) == end == max(stop for _, stop in ranges)
        if columns % (STEP * dict(options)["SPLIT"]) == 0:
            assert {begin for begin, _ in ranges} == set(range(0, end, reads.unit))
        upcoming = upcoming_of(reads, 1 << 22)
        assert upcoming is not None
        assert (upcoming.pieces - 1) * upcoming.pitch + upcoming.piece_bytes <= total


def different_options(product: Product, tokens: int) -> list[Any]:
    """The best guess, one that overlaps the kernel before, one that splits columns, and one that
    does not: each is a kernel to compile."""
    options = product.options(2048, 4096, tokens)
    kinds = {(bool(dict(one)["PDL"]), dict(one)["SPLIT"] > 1): one for one in reversed(options)}
    return [options[0], *(one for one in kinds.values() if one != options[0])]


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 16])
@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_results_and_graphs_on_a_gpu(kind: str, tokens: int) -> None:
    torch.manual_seed(0)
    product: Product
    if kind == "int4":
        product, (weight, _) = packed.StreamedPacked(), packed_weight(2048, 4096, 4, 128, False)
        weight = replace(weight, scales=weight.scales.half())
    else:
        product = dense.StreamedFp8() if kind == "fp8" else dense.StreamedInt8()
        weight = weight_of(FP8 if kind == "fp8" else torch.int8, 2048, 4096)
    weight = replace(weight, codes=weight.codes.cuda(), scales=weight.scales.cuda())
    tensors, x = product.prepare(weight), torch.randn(tokens, 4096, device="cuda").bfloat16()
    for options in different_options(product, tokens):
        reads = product.reads(tensors, options, tokens)
        assert reads is not None
        for most in (1 << 20, 1 << 24):
            inputs = Inputs(x, upcoming=upcoming_of(reads, most))
            assert inputs.upcoming is not None
            alone = product.multiply(Inputs(x), tensors, options)
            assert torch.equal(product.multiply(inputs, tensors, options), alone), options
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = product.multiply(inputs, tensors, options)
            captured.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(captured, alone), options
