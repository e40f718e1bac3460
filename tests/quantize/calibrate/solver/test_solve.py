"""The solver against float64 formulas that are written out here."""

from collections.abc import Callable

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, fake_quantize
from llmcompressor.modifiers.pruning.sparsegpt.sgpt_sparsify import sparsify_weight

from quantize.calibrate.solver.block import NOTHING_PRUNED, Pruning
from quantize.calibrate.solver.grid import Grid
from quantize.calibrate.solver.solve import output_errors, solve

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


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and the products of correlated inputs."""
    generator = torch.Generator().manual_seed(22)
    weights = torch.randn(ROWS, COLUMNS, generator=generator)
    mixing = torch.randn(COLUMNS, COLUMNS, generator=generator)
    inputs = mixing @ torch.randn(COLUMNS, TOKENS, generator=generator)
    return weights, inputs @ inputs.T


def two_of_four(weights: torch.Tensor) -> torch.Tensor:
    """The weights without the two smaller of each four."""
    fours = weights.unflatten(-1, (-1, 4))
    kept = torch.zeros_like(fours).scatter(-1, fours.abs().topk(2).indices, 1.0)
    return (fours * kept).flatten(-2)


def scales_of(weights: torch.Tensor, group_size: int) -> torch.Tensor:
    return weights.unflatten(-1, (-1, group_size)).abs().amax(-1) / LARGEST_CODE


def grid_of(weights: torch.Tensor, group_size: int) -> Grid:
    by_channel = group_size == COLUMNS
    args = QuantizationArgs(
        num_bits=4,
        strategy="channel" if by_channel else "group",
        group_size=None if by_channel else group_size,
        symmetric=True,
    )
    return Grid.of(args, weights.shape, scales_of(weights, group_size), None, None)


def dampened(products: torch.Tensor) -> torch.Tensor:
    products = products.double()
    return products + DAMPENING * products.diag().mean() * torch.eye(len(products)).double()


@pytest.mark.parametrize("reference", [by_least_squares, by_cholesky])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group_size", [COLUMNS, 8])
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("block_size", [128, 8, 5])
def test_weights_are_those_of_the_formula(
    reference: Callable[..., torch.Tensor],
    act_order: bool,
    group_size: int,
    pruned: bool,
    block_size: int,
) -> None:
    """Whatever the order of the columns and the size of the blocks."""
    weights, products = problem()
    grid = grid_of(weights, group_size)
    scale = scales_of(weights, group_size).double()
    if pruned:
        weights = two_of_four(weights)
    solution = solve(
        weights,
        products,
        grid,
        Pruning(kept=weights != 0) if pruned else NOTHING_PRUNED,
        act_order=act_order,
        dampening=DAMPENING,
        block_size=block_size,
    )
    assert not solution.fell_back
    hessian = dampened(products)
    order = hessian.diag().argsort(descending=True) if act_order else torch.arange(COLUMNS)
    scales = scale.repeat_interleave(group_size, dim=1)[:, order]
    nearest = Nearest(scales, weights[:, order] != 0)
    expected = torch.zeros(ROWS, COLUMNS).double()
    expected[:, order] = reference(weights[:, order].double(), hessian[order][:, order], nearest)
    assert nearest.margin > 1e-4, "float32 may round the other way; choose another seed"
    assert torch.allclose(solution.weights.double(), expected, atol=1e-5)
    assert (solution.weights[weights == 0] == 0).all()


def lost(weights: torch.Tensor, changed: torch.Tensor, products: torch.Tensor) -> float:
    error = weights.double() - changed.double()
    return float((error @ products.double() @ error.T).trace())


def test_later_columns_compensate_for_rounding() -> None:
    """GPTQ's weights change the outputs less than plain rounding of the same weights."""
    weights, products = problem()
    weights = two_of_four(weights)
    grid = grid_of(weights, COLUMNS)
    plain = torch.stack([grid.round(weights[:, j], j) for j in range(COLUMNS)], dim=1)
    pruning = Pruning(kept=weights != 0)
    solution = solve(
        weights, products, grid, pruning, act_order=True, dampening=DAMPENING, block_size=128
    )
    assert lost(weights, solution.weights, products) < 0.9 * lost(weights, plain, products)


def test_products_without_a_factorization_leave_plain_rounding() -> None:
    weights, _ = problem()
    grid = grid_of(weights, COLUMNS)
    solution = solve(
        weights, -torch.eye(COLUMNS), grid, act_order=False, dampening=0.0, block_size=128
    )
    assert solution.fell_back
    plain = torch.stack([grid.round(weights[:, j], j) for j in range(COLUMNS)], dim=1)
    assert torch.allclose(solution.weights, plain, atol=1e-6)


def test_an_input_that_is_always_zero_has_no_weights() -> None:
    weights, products = problem()
    products[5, :] = products[:, 5] = 0
    solution = solve(
        weights,
        products,
        grid_of(weights, COLUMNS),
        act_order=True,
        dampening=DAMPENING,
        block_size=128,
    )
    assert not solution.fell_back
    assert (solution.weights[:, 5] == 0).all()
    assert (solution.weights[:, 6] != 0).any()


# ---- pruning -------------------------------------------------------------------------------


def test_pruning_is_that_of_sparsegpt() -> None:
    """llm-compressor's own code on the same problem: the same zeros and the same other weights."""
    weights, products = problem()
    module = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    module.weight.data.copy_(weights)
    _, expected = sparsify_weight(
        module, {module: products.clone()}, 0.5, 2, 4, 128, DAMPENING, False
    )
    solution = solve(
        weights,
        products,
        None,
        Pruning(choose=True),
        act_order=False,
        dampening=DAMPENING,
        block_size=16,
    )
    assert ((solution.weights == 0) == (expected == 0)).all()
    assert torch.allclose(solution.weights, expected.detach(), atol=1e-4)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("act_order", [False, True])
def test_two_of_four_become_zero_while_the_columns_are_walked(
    rounds: bool, act_order: bool
) -> None:
    """Also where the columns come in another order, and where they are rounded on the way."""
    weights, products = problem()
    solution = solve(
        weights,
        products,
        grid_of(weights, COLUMNS) if rounds else None,
        Pruning(choose=True),
        act_order=act_order,
        dampening=DAMPENING,
        block_size=8,
    )
    zeros = (solution.weights.unflatten(1, (-1, 4)) == 0).sum(-1)
    assert (zeros >= 2).all()
    by_size = two_of_four(weights)
    assert lost(weights, solution.weights, products) < lost(weights, by_size, products)


def test_weights_that_are_zero_already_stay_so() -> None:
    """And count among the two zeros of their four."""
    weights, products = problem()
    weights[:, ::4] = 0
    solution = solve(
        weights,
        products,
        None,
        Pruning(kept=weights != 0, choose=True),
        act_order=False,
        dampening=DAMPENING,
        block_size=128,
    )
    assert (solution.weights[:, ::4] == 0).all()
    assert ((solution.weights.unflatten(1, (-1, 4)) == 0).sum(-1) == 2).all()


# ---- grids ---------------------------------------------------------------------------------


STRATEGIES = {
    "tensor": ({}, (1,)),
    "channel": ({}, (ROWS, 1)),
    "group": ({"group_size": 8}, (ROWS, COLUMNS // 8)),
    "block": ({"block_structure": [4, 8]}, (ROWS // 4, COLUMNS // 8)),
}


ROUNDED = [
    (strategy, symmetric, bits, kind)
    for strategy in STRATEGIES
    for symmetric in (True, False)
    for bits, kind in [(8, "int"), (4, "int"), (8, "float"), (4, "float")]
    # Floats are symmetric, and compressed-tensors has no zero points for blocks.
    if symmetric or (kind == "int" and strategy != "block")
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("strategy", "symmetric", "bits", "kind"), ROUNDED)
def test_a_grid_rounds_as_compressed_tensors_does(
    strategy: str, symmetric: bool, bits: int, kind: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(bits)
    weights = torch.randn(ROWS, COLUMNS, generator=generator) * 3
    options, shape = STRATEGIES[strategy]
    args = QuantizationArgs(
        num_bits=bits, type=kind, strategy=strategy, symmetric=symmetric, **options
    )
    scale = (torch.rand(shape, generator=generator) + 0.1).to(dtype)
    zero_point = None if symmetric else torch.randint(-3, 4, shape, generator=generator).float()
    grid = Grid.of(args, weights.shape, scale, zero_point, None)
    rounded = torch.stack([grid.round(weights[:, j], j) for j in range(COLUMNS)], dim=1)
    assert torch.equal(rounded, fake_quantize(weights, scale, zero_point, args).float())


def test_a_global_scale_divides_the_scales() -> None:
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    scale, share = torch.rand(ROWS, 2) + 0.5, torch.tensor([4.0])
    grid = Grid.of(args, torch.Size((ROWS, COLUMNS)), scale, None, share)
    assert torch.allclose(grid.scale, scale / 4)


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_the_error_is_that_of_the_output(size: float) -> None:
    """As computed from the inputs themselves, whatever the size of weights and inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(COLUMNS, TOKENS, generator=generator) * size
    weights = [torch.randn(rows, COLUMNS, generator=generator) * size for rows in (ROWS, 3)]
    changed = [
        weight + torch.randn(weight.shape, generator=generator) * size / 10 for weight in weights
    ]
    errors = output_errors(weights, changed, inputs @ inputs.T)
    for weight, other, error in zip(weights, changed, errors, strict=True):
        difference = (weight.double() - other.double()) @ inputs.double()
        expected = difference.norm() / (weight.double() @ inputs.double()).norm()
        assert error == pytest.approx(float(expected), rel=1e-3)


def test_a_module_that_answers_nothing_has_no_error() -> None:
    zero = torch.zeros(ROWS, COLUMNS)
    assert output_errors([zero], [zero], torch.eye(COLUMNS)) == [0]
