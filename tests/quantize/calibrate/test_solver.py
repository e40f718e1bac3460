"""The solver against float64 formulas that are written out here."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from llmcompressor.modifiers.gptq import base as gptq
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight
from llmcompressor.modifiers.pruning.sparsegpt import base as sparsegpt
from llmcompressor.utils.metric_logging import CompressionLogger

from quantize.calibrate.solver import (
    SharedProducts,
    gptq_patches,
    noted_errors,
    quantize_keeping_zeros,
    sparsegpt_patches,
    with_output_error,
)

ROWS, COLUMNS, TOKENS = 8, 32, 256
SMALLEST_CODE, LARGEST_CODE = -8, 7  # of four bits
DAMPENING = 0.01
Rounding = Callable[[int, torch.Tensor], torch.Tensor]


# ---- GPTQ's update, written twice ----------------------------------------------------------


def by_least_squares(weights: torch.Tensor, hessian: torch.Tensor, q: Rounding) -> torch.Tensor:
    """Before column j is rounded, columns R = {j, j+1, ...} are those that minimize e H e' while
    the errors e_F = w_F - q_F of the columns before it are fixed: e_R = -e_F H_FR H_RR^-1."""
    rounded = torch.zeros_like(weights)
    for j in range(weights.shape[1]):
        fixed = weights[:, :j] - rounded[:, :j]
        rest = -fixed @ hessian[:j, j:] @ torch.linalg.inv(hessian[j:, j:])
        rounded[:, j] = q(j, weights[:, j] - rest[:, 0])
    return rounded


def by_cholesky(weights: torch.Tensor, hessian: torch.Tensor, q: Rounding) -> torch.Tensor:
    """The paper's form. With U upper triangular and U'U = H^-1, column j leaves the error
    e = (w_j - q_j) / U_jj, and every column k behind it becomes w_k - e U_jk."""
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    weights, rounded = weights.clone(), torch.zeros_like(weights)
    for j in range(weights.shape[1]):
        rounded[:, j] = q(j, weights[:, j])
        error = (weights[:, j] - rounded[:, j]) / upper[j, j]
        weights[:, j:] -= error[:, None] * upper[j, j:]
    return rounded


class Nearest:
    """Rounds a column to its codes; a weight that was zero stays zero. Remembers how near any value
    came to the middle between two codes, where float32 and float64 may differ."""

    def __init__(self, scales: torch.Tensor, mask: torch.Tensor) -> None:
        self.scales, self.mask, self.margin = scales, mask, 1.0

    def __call__(self, column: int, values: torch.Tensor) -> torch.Tensor:
        codes = values / self.scales[:, column]
        margin = (codes - codes.floor() - 0.5).abs()[self.mask[:, column]]
        self.margin = min([self.margin, *margin.tolist()])
        rounded = codes.round().clamp(SMALLEST_CODE, LARGEST_CODE) * self.scales[:, column]
        return rounded * self.mask[:, column]


def problem(group_size: int, pruned: bool) -> dict[str, torch.Tensor]:
    """Weights of two modules, the Hessians of correlated inputs, and a scale for each group."""
    generator = torch.Generator().manual_seed(20)
    weights = torch.randn(2, ROWS, COLUMNS, generator=generator)
    mixing = torch.randn(2, COLUMNS, COLUMNS, generator=generator)
    inputs = mixing @ torch.randn(2, COLUMNS, TOKENS, generator=generator)
    groups = weights.unflatten(-1, (-1, group_size)).abs().amax(-1)
    if pruned:  # the two smaller of each four
        fours = weights.unflatten(-1, (-1, 4))
        kept = torch.zeros_like(fours).scatter(-1, fours.abs().topk(2).indices, 1.0)
        weights = (fours * kept).flatten(-2)
    return {"weights": weights, "hessians": 2 * inputs @ inputs.mT / TOKENS, "scale": groups / 7}


def arguments(group_size: int, act_order: bool) -> QuantizationArgs:
    by_channel = group_size == COLUMNS
    return QuantizationArgs(
        num_bits=4,
        strategy="channel" if by_channel else "group",
        group_size=None if by_channel else group_size,
        symmetric=True,
        actorder="static" if act_order else None,
    )


@pytest.mark.parametrize("reference", [by_least_squares, by_cholesky])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group_size", [COLUMNS, 8])
@pytest.mark.parametrize(
    ("solve", "pruned", "block_size"),
    [
        (quantize_weight, False, 128),
        (quantize_keeping_zeros, False, 128),
        (quantize_keeping_zeros, True, 128),
        (quantize_keeping_zeros, True, 8),
        (quantize_keeping_zeros, True, 5),
    ],
)
def test_weights_are_those_of_the_formula(
    reference: Callable[..., torch.Tensor],
    act_order: bool,
    group_size: int,
    solve: Callable[..., Any],
    pruned: bool,
    block_size: int,
) -> None:
    """Whatever the order of the columns and the size of the blocks."""
    given = problem(group_size, pruned)
    quantized, _, fell_back = solve(
        **{name: tensor.clone() for name, tensor in given.items()},
        zero_point=torch.zeros_like(given["scale"]),
        global_scale=None,
        quant_args=arguments(group_size, act_order),
        blocksize=block_size,
        percdamp=DAMPENING,
    )
    assert not fell_back.any()
    for module in range(2):
        weights, hessian, scale = (tensor[module].double() for tensor in given.values())
        hessian = hessian + DAMPENING * hessian.diag().mean() * torch.eye(COLUMNS).double()
        order = hessian.diag().argsort(descending=True) if act_order else torch.arange(COLUMNS)
        scales = scale.repeat_interleave(group_size, dim=1)[:, order]
        nearest = Nearest(scales, weights[:, order] != 0)
        expected = torch.zeros_like(weights)
        expected[:, order] = reference(weights[:, order], hessian[order][:, order], nearest)
        assert nearest.margin > 1e-4, "float32 may round the other way; choose another seed"
        assert torch.allclose(quantized[module].double(), expected, atol=1e-5)
        assert (quantized[module][weights == 0] == 0).all()


def test_the_rest_makes_up_for_rounding() -> None:
    """GPTQ's weights change the outputs less than plain rounding of the same weights."""
    given = problem(COLUMNS, pruned=True)
    weights, hessian, scale = (tensor[0].double() for tensor in given.values())
    plain = (weights / scale).round().clamp(SMALLEST_CODE, LARGEST_CODE) * scale
    quantized, _, _ = quantize_keeping_zeros(
        **{name: tensor.clone() for name, tensor in given.items()},
        zero_point=torch.zeros_like(given["scale"]),
        global_scale=None,
        quant_args=arguments(COLUMNS, act_order=True),
    )

    def lost(other: torch.Tensor) -> float:
        error = weights - other.double()
        return float((error @ hessian @ error.T).trace())

    assert lost(quantized[0]) < 0.9 * lost(plain)


def test_a_hessian_that_has_no_inverse_leaves_plain_rounding() -> None:
    given = problem(COLUMNS, pruned=True)
    given["hessians"][1] = -torch.eye(COLUMNS)
    weights, scale = given["weights"][1].clone(), given["scale"][1]
    quantized, _, fell_back = quantize_keeping_zeros(
        **given,
        zero_point=torch.zeros_like(given["scale"]),
        global_scale=None,
        quant_args=arguments(COLUMNS, act_order=False),
        percdamp=0.0,
    )
    assert fell_back.tolist() == [False, True]
    plain = (weights / scale).round().clamp(SMALLEST_CODE, LARGEST_CODE) * scale
    assert torch.allclose(quantized[1], plain, atol=1e-6)


def test_an_input_that_is_always_zero_has_no_weights() -> None:
    given = problem(COLUMNS, pruned=False)
    given["hessians"][:, 5, :] = 0
    given["hessians"][:, :, 5] = 0
    quantized, _, fell_back = quantize_keeping_zeros(
        **given,
        zero_point=torch.zeros_like(given["scale"]),
        global_scale=None,
        quant_args=arguments(COLUMNS, act_order=True),
    )
    assert not fell_back.any()
    assert (quantized[:, :, 5] == 0).all()
    assert (quantized[:, :, 6] != 0).any()


# ---- Hessians ------------------------------------------------------------------------------


def batches(dtype: torch.dtype) -> list[torch.Tensor]:
    """Two batches of sequences and one lone sequence."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 9, COLUMNS), (3, 5, COLUMNS), (7, COLUMNS)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def sum_of_products(inputs: list[torch.Tensor]) -> torch.Tensor:
    """The sum over all tokens of 2 x x'."""
    rows = torch.cat([tensor.double().reshape(-1, COLUMNS) for tensor in inputs])
    return 2 * rows.T @ rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gptq_hessian_is_the_sum_over_all_tokens(dtype: torch.dtype) -> None:
    """For each of the modules that share an input, and for one that does not."""
    modules = [torch.nn.Linear(COLUMNS, 2) for _ in range(3)]
    hessians = [torch.zeros(COLUMNS, COLUMNS) for _ in modules]
    counts = [torch.zeros(()) for _ in modules]
    products, shared = SharedProducts(), batches(dtype)
    own = [tensor * 2 for tensor in shared]
    for of_all, of_last in zip(shared, own, strict=True):
        for number, inputs in enumerate((of_all, of_all, of_last)):
            hessians[number], counts[number] = products.accumulate(
                inputs, modules[number], hessians[number], counts[number]
            )
    expected = sum_of_products(shared)
    for hessian, factor in zip(hessians, (1, 1, 4), strict=True):
        assert torch.allclose(hessian.double(), factor * expected, rtol=1e-4, atol=1e-4)
    assert [int(count) for count in counts] == [6, 6, 6]  # sequences


def test_a_sparsegpt_hessian_is_the_mean_over_sequences() -> None:
    hessian, count = torch.zeros(COLUMNS, COLUMNS), 0
    products, inputs = SharedProducts(), batches(torch.float32)
    for tensor in inputs:
        hessian, count = products.accumulate_plain(tensor, None, hessian, count)
    assert count == 6
    assert torch.allclose(hessian.double(), sum_of_products(inputs) / 6, rtol=1e-4, atol=1e-4)


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("solve", [quantize_weight, quantize_keeping_zeros])
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_the_error_is_that_of_the_output(solve: Callable[..., Any], size: float) -> None:
    """As computed from the inputs themselves, whatever the size of weights and inputs."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, ROWS, COLUMNS, generator=generator) * size
    inputs = torch.randn(2, COLUMNS, TOKENS, generator=generator) * size
    scales = weights.abs().amax(-1, keepdim=True) / 7
    quantized, errors, fell_back = partial(with_output_error, solve)(
        weights=weights.clone(),
        hessians=2 * inputs @ inputs.mT / TOKENS,
        scale=scales,
        zero_point=torch.zeros_like(scales),
        global_scale=None,
        quant_args=arguments(COLUMNS, act_order=False),
    )
    lost = (weights.double() - quantized.double()) @ inputs.double()
    whole = weights.double() @ inputs.double()
    expected = lost.flatten(1).norm(dim=1) / whole.flatten(1).norm(dim=1)
    assert errors.tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert (errors > 0.01).all()
    assert (errors < 0.5).all()
    assert not fell_back.any()


def test_a_module_that_answers_nothing_has_no_error() -> None:
    zero = torch.zeros(1, ROWS, COLUMNS)
    answer = zero.clone(), torch.ones(1), torch.zeros(1, dtype=torch.bool)
    _, errors, _ = with_output_error(
        lambda **_: answer, weights=zero, hessians=torch.eye(COLUMNS).unsqueeze(0)
    )
    assert errors.tolist() == [0]


def test_errors_are_noted_by_module_and_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    errors: dict[str, dict[str, float]] = defaultdict(dict)
    with noted_errors(model, errors), CompressionLogger(model[1]) as logger:
        logger.set_results(name="SGPT", loss=3.0)
        logger.set_results(name="GPTQ", loss=0.5)
    with CompressionLogger(model[0]) as logger:
        logger.set_results(name="GPTQ", loss=0.7)
    assert errors == {"1": {"sgpt": 3.0, "gptq": 0.5}}


def test_patches_are_taken_back() -> None:
    before = gptq.quantize_weight, gptq.accumulate_hessian, sparsegpt.accumulate_hessian
    with gptq_patches(keep_zeros=True), sparsegpt_patches():
        assert gptq.quantize_weight.args == (quantize_keeping_zeros,)
        during = gptq.quantize_weight, gptq.accumulate_hessian, sparsegpt.accumulate_hessian
        assert not set(map(id, before)) & set(map(id, during))
    with gptq_patches(keep_zeros=False):
        assert gptq.quantize_weight.args == (quantize_weight,)
    assert (gptq.quantize_weight, gptq.accumulate_hessian, sparsegpt.accumulate_hessian) == before
