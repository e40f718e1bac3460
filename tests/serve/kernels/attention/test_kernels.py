"""The kernels of attention, in Triton's interpreter against float64, and compiled for Hopper."""

from pathlib import Path

import pytest

from tests.triton_scripts import interpreted, needs_triton, printed_by

SCRIPTS = "tests.serve.kernels.attention"
BFLOAT16, FLOAT16 = 0.04, 0.002
"""Rounding of numbers of up to 4, which the interpreter cuts off, twice on the way."""


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    return interpreted(f"{SCRIPTS}.interpreted")


@needs_triton
@pytest.mark.parametrize(
    "name",
    [
        *("one part", "parts", "many parts", "parts joined in rounds", "groups of three"),
        *("wide tiles", "large pages", "four dimensions"),
        *("rotated", "normalized", "rotate rope", "rotate norm"),
    ],
)
def test_errors_are_those_of_rounding(errors: dict[str, float], name: str) -> None:
    assert errors[name] < BFLOAT16


@needs_triton
def test_float16(errors: dict[str, float]) -> None:
    assert errors["float16, no groups"] < FLOAT16


@needs_triton
def test_keys_and_values_are_stored_as_they_are(errors: dict[str, float]) -> None:
    assert errors["store"] == 0


@needs_triton
def test_older_tokens_are_asked_for_before_the_wait_and_nothing_is_spilled(tmp_path: Path) -> None:
    lines = printed_by(f"{SCRIPTS}.compiled", TRITON_CACHE_DIR=str(tmp_path))
    kernels = {line["name"]: line for line in lines}
    assert {name: kernel["spills"] for name, kernel in kernels.items()} == dict.fromkeys(
        ("few", "many", "rope", "store"), 0
    )
    assert kernels["few"]["early"] >= kernels["few"]["wide loads"] / 4
    assert kernels["many"]["early"] == 0, "without a wait there is nothing before it"
