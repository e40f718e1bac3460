"""Products against float64."""

import pytest
import torch

from serve.kernels.plans.plan import Plan, Step
from serve.kernels.plans.proof import Proof, dense, exact_inputs
from serve.kernels.plans.search import Prepared
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from tests.serve.kernels.products_for_tests import Few, Many, Plain, Rounded, Wrong, int8_weight

FP8 = torch.float8_e4m3fn


def prepared(product: Product) -> Prepared:
    return Prepared(product, product.prepare(int8_weight()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounded", [torch.int8, FP8])
def test_plain_and_rounded_activations_are_equal(rounded: torch.dtype, dtype: torch.dtype) -> None:
    inputs = exact_inputs(5, 64, rounded, torch.empty(0), dtype)
    assert inputs.rounded is not None
    assert inputs.scales is not None
    assert torch.equal(inputs.plain.double(), inputs.rounded.double() * inputs.scales)
    most = 127.0 if rounded == torch.int8 else 448.0
    again = inputs.plain.float().abs().amax(1, keepdim=True) / most
    assert torch.equal(again, inputs.scales), "rounding them gives the same scales"


@pytest.mark.parametrize("product", [Plain(), Rounded(), Few(), Many()])
def test_a_right_product_passes(product: Product) -> None:
    Proof(int8_weight(), torch.int8, torch.bfloat16).check(prepared(product))


def test_a_wrong_product_is_refused_with_its_error() -> None:
    proof = Proof(int8_weight(), None, torch.bfloat16)
    with pytest.raises(Unusable, match=r"is off by 0\.\d+ \(in one number .*\) for 1 tokens"):
        proof.check(prepared(Wrong()))


class OneWrongNumber(Plain):
    name = "one_wrong_number"

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        result = super().multiply(inputs, tensors, options)
        result[-1, -1] = self.value
        return result

    value = 0.0


class NanNumber(OneWrongNumber):
    value = float("nan")


@pytest.mark.parametrize("product", [OneWrongNumber(), NanNumber()])
def test_one_wrong_number_is_noticed(product: Product) -> None:
    weight = int8_weight(2048, 64)
    candidate = Prepared(product, product.prepare(weight))
    with pytest.raises(Unusable, match="is off by"):
        Proof(weight, None, torch.bfloat16).check(candidate)


class WrongForMany(Plain):
    """Right for up to 100 tokens, and with one option."""

    name = "wrong_for_many"

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        result = super().multiply(inputs, tensors, options)
        is_right = inputs.plain.shape[0] <= 100 and dict(options).get("block") == 64
        return result if is_right else result * 2


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Step(100, "wrong_for_many", (("block", 64),)), Step(None, "plain")], ""),
        ([Step(4, "plain"), Step(None, "wrong_for_many", (("block", 64),))], ""),
        ([Step(4, "plain"), Step(None, "wrong_for_many", (("block", 128),))], "for 5 tokens"),
        ([Step(150, "plain"), Step(None, "wrong_for_many", (("block", 64),))], "for 151 tokens"),
    ],
)
def test_the_options_of_each_step_are_checked(steps: list[Step], message: str) -> None:
    proof = Proof(int8_weight(), None, torch.bfloat16)
    candidate, plan = prepared(WrongForMany()), Plan(tuple(steps))
    if not message:
        proof.check_plan(candidate, plan)
        return
    with pytest.raises(Unusable, match=message):
        proof.check_plan(candidate, plan)


@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_read_as_their_format_says(
    bits: int, group_size: int | None, with_zeros: bool
) -> None:
    values = torch.randint(0, 2**bits, (6, 64))
    groups = 64 // (group_size or 64)
    scales = torch.rand(6, groups)
    zeros = torch.randint(0, 2**bits, (6, groups)) if with_zeros else None
    words = torch.zeros(6, 64 * bits // 32, dtype=torch.int64)
    each = 32 // bits
    for column in range(64):
        words[:, column // each] |= values[:, column] << (column % each * bits)
    codes = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    weight = Weight(codes, scales, bits, 64, zeros, group_size)
    for row, column in ((0, 0), (5, 63), (3, 17)):
        group = column * groups // 64
        zero = int(zeros[row, group]) if zeros is not None else 2 ** (bits - 1)
        right = (int(values[row, column]) - zero) * float(scales[row, group])
        assert float(dense(weight, 0, 6)[row, column]) == pytest.approx(right)
    assert torch.equal(dense(weight, 2, 4), dense(weight, 0, 6)[2:4])


def test_a_product_may_round_more_if_it_says_so() -> None:
    class Coarse(Wrong):
        tolerance = 0.2

    proof = Proof(int8_weight(), torch.int8, torch.bfloat16)
    with pytest.raises(Unusable, match=r"is off by 0\.09"):
        proof.check(prepared(Wrong()))
    proof.check(prepared(Coarse()))


def test_what_is_checked_can_be_compiled_before() -> None:
    calls = Proof(int8_weight(), torch.int8, torch.bfloat16).calls(prepared(Plain()))
    assert [tuple(call().shape) for call in calls] == [(33, 48)], "one kernel for all of them"
