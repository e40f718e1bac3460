"""Our Triton kernels against float64, in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
TRITON = ROOT / ".triton"
ROUNDING = 1e-3
"""Results are float16."""
FP8_ROUNDING = 0.07
"""The interpreter drops the bits that do not fit; a GPU rounds to the nearest: half of it."""

pytestmark = pytest.mark.skipif(
    not (TRITON / "triton").is_dir(), reason="there is no .triton: make setup-triton"
)


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """How far each kernel is from float64: one process for all."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.serve.kernels.products.interpreted"],
        cwd=ROOT,
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{TRITON}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {line["name"]: line["error"] for line in lines}


@pytest.mark.parametrize(
    "name",
    [
        "few_tokens_int8",
        "few_tokens_fp8",
        "few_tokens_fp8_plain",
        "few_tokens_int8_plain",
        "sparse_few_tokens_int8",
        "sparse_few_tokens_fp8",
    ],
)
def test_few_tokens(errors: dict[str, float], name: str) -> None:
    assert errors[f"{name} split"] < ROUNDING
    assert errors[f"{name} whole"] < ROUNDING


@pytest.mark.parametrize("name", ["one_token_fp8", "one_token_int8", "scaled", "scaled by rows"])
def test_one_token_and_scales(errors: dict[str, float], name: str) -> None:
    assert errors[name] < ROUNDING


@pytest.mark.parametrize("name", ["few_tokens_int8", "sparse_few_tokens_int8"])
def test_scales_of_tokens_may_be_left_to_the_caller(errors: dict[str, float], name: str) -> None:
    assert errors[f"{name} without scales"] < ROUNDING


@pytest.mark.parametrize("rows", [0, 16])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("group", [128, None])
@pytest.mark.parametrize("bits", [4, 8])
def test_unpacking(
    errors: dict[str, float], bits: int, group: int | None, has_zeros: bool, rows: int
) -> None:
    kind = f"unpack {bits} bits, group {group}, zeros {has_zeros}, rows {rows}"
    assert errors[kind] < ROUNDING


def test_unpacking_to_fp8(errors: dict[str, float]) -> None:
    assert errors["unpack_fp8"] < FP8_ROUNDING


def test_assembly(errors: dict[str, float]) -> None:
    assert errors["assembly"] == 0.0
