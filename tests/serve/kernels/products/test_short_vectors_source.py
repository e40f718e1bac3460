"""The sources of the kernels for vectors of four, run on a CPU, against float64."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from serve.kernels.products.short_vectors.kernels import ShortVariant
from serve.kernels.products.short_vectors.layout import ShortWeight, prepared
from tests.serve.kernels.products import nvrtc, short_vectors_on_cpu
from tests.serve.kernels.products.test_vptq import error, exact, vector_weight


@dataclass(frozen=True)
class Case:
    """Layers, tokens and a launch."""

    entries: int
    rows: tuple[int, ...]
    tokens: int
    fragments: int
    blocks: tuple[int, ...]
    share: int
    staged: int
    norm: bool = False
    dtype: torch.dtype = torch.bfloat16


COLUMNS = 392
"""Not whole blocks of 128, so that some warps have no work in the last round."""
CASES = {
    "one token, three layers": Case(4096, (64, 36, 32), 1, 1, (1, 1, 1), 4, 512, True),
    "a tile for each warp": Case(2048, (200,), 3, 1, (1,), 1, 512),
    "two layers, activations in stages": Case(4096, (64, 40), 5, 2, (1, 2), 2, 256, True),
    "a copy for each lane": Case(256, (72,), 12, 4, (2,), 4, 1024, True, torch.float16),
    "half a copy for each lane": Case(1024, (40,), 4, 1, (1,), 2, 512),
    "large codebook": Case(16384, (40,), 16, 4, (1,), 4, 512),
}
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def variant_of(case: Case, weight: ShortWeight) -> ShortVariant:
    dtype = {torch.bfloat16: "bf16", torch.float16: "f16"}[case.dtype]
    copies = weight.copies
    return ShortVariant(4, case.fragments, weight.bits, case.entries, copies, case.norm, dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_source(case: Case, tmp_path: Path) -> None:
    layers = [
        vector_weight(rows, COLUMNS, (case.entries, 0), 4, case.norm, case.dtype)
        for rows in case.rows
    ]
    weight = ShortWeight(*prepared(layers))
    variant = variant_of(case, weight)
    x = torch.randn(case.tokens, COLUMNS).to(case.dtype)
    result = short_vectors_on_cpu.product(
        variant, x, weight, list(case.blocks), case.share, case.staged, tmp_path
    )
    right = torch.cat([x.double() @ exact(layer).t() for layer in layers], dim=1)
    assert error(result, right) < 0.003


@pytest.mark.parametrize("name", ["one token, three layers", "a copy for each lane"])
def test_unpacking(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    layers = [
        vector_weight(rows, 264, (case.entries, 0), 4, case.norm, case.dtype) for rows in case.rows
    ]
    weight = ShortWeight(*prepared(layers))
    last = len(layers) - 1
    found = short_vectors_on_cpu.unpacked(variant_of(case, weight), weight, last, 264, tmp_path)
    assert error(found, exact(layers[last])) < 0.003
    assert torch.allclose(found.float(), weight.dense(last, 0, 9, 264)[: len(found)], rtol=0.01)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_source_compiles(dtype: str) -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    library = nvrtc.library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    for variant in (
        ShortVariant(16, 1, 13, 4096, 2, True, dtype, 2),
        ShortVariant(8, 4, 8, 256, 1, False, dtype),
    ):
        assert nvrtc.errors(library, variant.source()) == ""
        assert nvrtc.errors(library, variant.unpack_source()) == ""
