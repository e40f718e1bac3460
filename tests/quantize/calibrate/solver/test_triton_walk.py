"""On an NVIDIA GPU: the Triton kernel does what the walk in torch does."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs

from quantize.calibrate.solver import solve as solver
from quantize.calibrate.solver import torch_walk
from quantize.calibrate.solver.block import NOTHING_PRUNED, Pruning
from quantize.calibrate.solver.grid import Grid
from quantize.calibrate.solver.products import Products
from quantize.calibrate.solver.solve import solve

ROWS, COLUMNS = 130, 516  # no multiple of a program's rows or of a block
KINDS = [
    (8, "int", True),
    (4, "int", True),
    (4, "int", False),
    (8, "float", True),
    (4, "float", True),
]
OPTIONS = {"channel": {}, "group": {"group_size": 129}, "block": {"block_structure": [10, 43]}}


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    weights = torch.randn(ROWS, COLUMNS, generator=generator, device="cuda")
    inputs = torch.randn(4 * COLUMNS, COLUMNS, generator=generator, device="cuda")
    inputs = inputs * torch.rand(COLUMNS, generator=generator, device="cuda")
    return weights, inputs.T @ inputs


def grid_of(
    weights: torch.Tensor, strategy: str, bits: int, kind: str, symmetric: bool, dtype: torch.dtype
) -> Grid:
    args = QuantizationArgs(
        num_bits=bits, type=kind, strategy=strategy, symmetric=symmetric, **OPTIONS[strategy]
    )
    shapes = {"channel": (ROWS, 1), "group": (ROWS, 4), "block": (13, 12)}
    largest = {("int", 8): 127, ("int", 4): 7, ("float", 8): 448, ("float", 4): 6}[kind, bits]
    scale = torch.full(shapes[strategy], float(weights.abs().max()) / largest, device="cuda")
    scale *= torch.rand_like(scale) * 0.5 + 0.5
    zero_point = None if symmetric else torch.full_like(scale, 2.0)
    return Grid.of(args, weights.shape, scale.to(dtype), zero_point, None)


def lost(weights: torch.Tensor, changed: torch.Tensor, products: torch.Tensor) -> float:
    error = weights - changed
    return float(((error @ products) * error).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "kind", "symmetric"), KINDS)
@pytest.mark.parametrize("strategy", OPTIONS)
@pytest.mark.parametrize("pruning", ["none", "kept", "chosen", "both"])
def test_the_kernel_does_what_torch_does(
    pruning: str,
    strategy: str,
    bits: int,
    kind: str,
    symmetric: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flipped rounding changes all that follows in its row: the errors have to agree."""
    if pruning != "none" and not symmetric:
        pytest.skip("zeros survive only symmetric rounding")
    weights, products = problem()
    grid = grid_of(weights, strategy, bits, kind, symmetric, dtype)
    kept = weights.abs() > 0.5
    zeros = {
        "none": NOTHING_PRUNED,
        "kept": Pruning(kept),
        "chosen": Pruning(choose=True),
        "both": Pruning(kept, choose=True),
    }[pruning]
    options = {"act_order": True, "dampening": 0.01, "block_size": 128}
    by_kernel = solve(weights, products, grid, zeros, **options).weights
    monkeypatch.setattr(
        solver, "_walk_for", lambda device, block_size: (torch_walk.walk, block_size)
    )
    by_torch = solve(weights, products, grid, zeros, **options).weights
    assert lost(weights, by_kernel, products) == pytest.approx(
        lost(weights, by_torch, products), rel=0.02
    )
    assert (by_kernel == by_torch).float().mean() > 0.9
    if zeros.kept is not None:
        assert (by_kernel[~kept] == 0).all()
    if zeros.choose:
        assert ((by_kernel.unflatten(1, (-1, 4)) == 0).sum(-1) >= 2).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_on_the_gpu_are_as_exact_as_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = torch.rand(2500, generator=generator, device="cuda") * 10
    inputs = torch.randn(3, 4096, 2500, generator=generator, device="cuda") * sizes
    products = Products(2500, inputs.device)
    tokens = inputs.to(dtype).reshape(-1, 2500).double()
    for batch in inputs.to(dtype):
        products.add(batch)
    exact = tokens.T @ tokens
    size = exact.diagonal().sqrt()
    assert ((products.matrix().double() - exact) / size / size[:, None]).abs().max() < 1e-4
