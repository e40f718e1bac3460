"""The source of the kernel of vector-quantized weights, run on a CPU, against float64."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.products.vptq import variant_of
from serve.kernels.products.vptq_prepared import parts_of, prepared
from tests.serve.kernels.products import vptq_on_cpu
from tests.serve.kernels.products.test_vptq import H200_BYTES, error, exact, vector_weight

CASES = {
    "one token, copies of main entries": ((4096, 256), 8, False, 1, 4, 2, False, 1),
    "one token, a warp for a row": ((256, 16), 8, True, 1, 4, 1, False, 1),
    "few registers for a thread": ((4096, 256), 8, False, 1, 4, 2, False, 8),
    "vectors of four": ((512, 32), 4, True, 3, 4, 2, False, 1),
    "main entries are gathered": ((512, 512), 8, True, 1, 4, 2, True, 1),
    "all entries are gathered": ((65536, 65536), 8, False, 1, 4, 2, False, 1),
    "no bit for swaps": ((4096, 4096), 8, False, 8, 4, 2, False, 1),
    "more than eight tokens, no residual": ((256, 0), 8, True, 12, 2, 2, False, 1),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_source(
    case: tuple[tuple[int, int], int, bool, int, int, int, bool, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows and columns leave some warps without work in the last round."""
    monkeypatch.setattr("serve.kernels.products.vptq_prepared.LEAST_TO_SPREAD", 1)
    entries, vector, norm, tokens, warps, share, direct, resident = case
    weight = vector_weight(5 * vector, 776, entries, vector, norm)
    (part,) = parts_of(prepared(weight, H200_BYTES))
    x = torch.randn(tokens, 776).to(torch.bfloat16)
    variant = variant_of(part, tokens, warps, direct, H200_BYTES, torch.bfloat16)
    variant = replace(variant, resident=resident)
    library = vptq_on_cpu.compiled(variant, tmp_path)
    result = vptq_on_cpu.product(library, variant, x, part, share, blocks=2)
    assert error(result, x.double() @ exact(weight).t()) < 0.003
