"""Our Triton kernels: against float64 in Triton's interpreter, and compiled for Hopper."""

import pytest

from tests.triton_scripts import interpreted, needs_triton, printed_by

SCRIPTS = "tests.serve.kernels.products"
ROUNDING = 1e-3
"""Results are float16."""
FP8_ROUNDING = 0.07
"""The interpreter drops the bits that do not fit; a GPU rounds to the nearest: half of it."""

pytestmark = needs_triton


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """How far each kernel is from float64."""
    return interpreted(f"{SCRIPTS}.interpreted")


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


def test_a_plan_for_fewer_tokens_loses_none(errors: dict[str, float]) -> None:
    assert errors["few_tokens_int8 fewer"] < ROUNDING
    assert errors["few_tokens_int8 fewer of wide"] < ROUNDING


@pytest.mark.parametrize("name", ["few_tokens_int8", "few_tokens_fp8"])
def test_rounded_tokens_up_to_64(errors: dict[str, float], name: str) -> None:
    assert errors[f"{name} wide"] < ROUNDING


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
    assert errors[f"{kind}, direct"] == 0.0


def test_unpacking_to_fp8(errors: dict[str, float]) -> None:
    assert errors["unpack_fp8"] < FP8_ROUNDING
    assert errors["unpack_fp8, scales False, direct"] == 0.0
    assert errors["unpack_fp8, scales True, direct"] == 0.0


def test_assembly(errors: dict[str, float]) -> None:
    assert errors["assembly"] == 0.0


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[int]]]:
    """Where the instructions of each kernel stand."""
    folder = tmp_path_factory.mktemp("triton")
    kernels = printed_by(f"{SCRIPTS}.compiled", TRITON_CACHE_DIR=str(folder))
    return {kernel.pop("name"): kernel for kernel in kernels}


@pytest.mark.parametrize("name", ["few_tokens", "sparse_few_tokens", "one_token"])
def test_compiled_kernels_touch_no_activation_before_the_kernel_in_front_has_ended(
    compiled: dict[str, dict[str, list[int]]], name: str
) -> None:
    """With programmatic dependent launch, only weights may be fetched before the wait."""
    kernel = compiled[name]
    assert len(kernel["wait"]) == 1
    assert max(kernel["prefetch"]) < kernel["wait"][0] < min(kernel["memory"])
