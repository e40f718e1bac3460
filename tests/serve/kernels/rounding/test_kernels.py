"""The kernels that round, in Triton's interpreter against float64, and compiled for Hopper."""

from pathlib import Path

import pytest

from serve.kernels.rounding.launch import MOST_WARPS, cut_of
from tests.triton_scripts import interpreted, needs_triton, printed_by

SCRIPTS = "tests.serve.kernels.rounding"
MOST_CODES = {"float16": 0.6, "bfloat16": 2.0}
"""Half a code is lost by rounding. The interpreter drops the bits that do not fit into bfloat16,
once or twice on the way: up to half a code each."""
SUM_ROUNDING = {"float16": 0.001, "bfloat16": 0.01}


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    return interpreted(f"{SCRIPTS}.interpreted")


@needs_triton
@pytest.mark.parametrize("width", ["one part", "three parts", "masked"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("codes", ["int8", "fp8"])
@pytest.mark.parametrize("name", ["round", "silu", "silu scaled", "norm", "norm scaled"])
def test_codes(errors: dict[str, float], name: str, codes: str, dtype: str, width: str) -> None:
    assert errors[f"{name} {codes} {dtype} {width}"] < MOST_CODES[dtype]


@needs_triton
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["norm", "norm scaled"])
def test_the_sum_is_the_next_residual(errors: dict[str, float], name: str, dtype: str) -> None:
    for width in ("one part", "three parts", "masked"):
        assert errors[f"{name} sum int8 {dtype} {width}"] < SUM_ROUNDING[dtype]


@needs_triton
def test_a_row_is_read_once_and_nothing_is_spilled(tmp_path: Path) -> None:
    kernels = printed_by(f"{SCRIPTS}.compiled", TRITON_CACHE_DIR=str(tmp_path))
    assert {kernel["name"]: kernel["bytes"] for kernel in kernels} == {
        "round": 2 * 4096,
        "norm": 3 * 2 * 4096,
        "silu": 2 * 2 * 12288,
    }
    assert [kernel["spills"] for kernel in kernels] == [0, 0, 0]


@pytest.mark.parametrize(
    ("columns", "part", "parts"),
    [(4096, 4096, 1), (12288, 4096, 3), (11008, 4096, 3), (14336, 16384, 1), (100, 128, 1)],
)
def test_rows_are_cut_with_little_waste(columns: int, part: int, parts: int) -> None:
    cut = cut_of(columns)
    assert (cut.part, cut.parts) == (part, parts)
    assert cut.warps <= MOST_WARPS


def test_short_rows_are_taken_several_at_once() -> None:
    assert cut_of(512).rows == 4
    assert cut_of(4096).rows == 1
