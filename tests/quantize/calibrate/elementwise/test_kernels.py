"""The kernels give what transformers computes, to the bit but for sums in another order."""

import pytest

from tests.triton_scripts import interpreted, needs_triton

pytestmark = needs_triton


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    return interpreted("tests.quantize.calibrate.elementwise.interpreted")


@pytest.mark.parametrize(
    ("kernel", "most"), [("norm", 0.01), ("rotary", 0), ("gated", 0.002), ("model", 0.01)]
)
def test_a_kernel_gives_what_transformers_computes(
    kernel: str, most: float, differences: dict[str, float]
) -> None:
    shares = [share for name, share in differences.items() if name.startswith(kernel)]
    assert shares
    assert max(shares) <= most
