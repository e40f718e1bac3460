"""VPTQ's algorithm: k-means, and columns that compensate for errors."""

import pytest
import torch

from conf.formats.quant_args import Codebooks
from quantize.calibrate.vectors.kmeans import kmeans, nearest
from quantize.calibrate.vectors.solve import Factor, Settings, sample, solve
from quantize.vptq.layer import VectorLayer

BOOKS = Codebooks(4, 16, 16)
SETTINGS = Settings(rounds=5, samples=64, dampening=0.01, act_order=True)
ROWS, COLUMNS = 62, 48  # the last vectors are not whole


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def inputs() -> torch.Tensor:
    """Inputs that depend on each other."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randn(512, 8, generator=generator) @ torch.randn(8, COLUMNS, generator=generator)
    return shared + 0.5 * torch.randn(512, COLUMNS, generator=generator)


def stored(weights: torch.Tensor, products: torch.Tensor, settings: Settings) -> torch.Tensor:
    tensors = solve(weights, Factor.of(products, settings), BOOKS, settings, torch.bfloat16)
    return VectorLayer(BOOKS, *weights.shape, tensors).dequantize()


def test_the_nearest_entry_is_found() -> None:
    vectors, entries = torch.randn(200, 4), torch.randn(50, 4)
    assert torch.equal(nearest(vectors, entries), torch.cdist(vectors, entries).argmin(1))


def test_rounds_lower_the_error() -> None:
    vectors = torch.randn(2000, 4, generator=torch.Generator().manual_seed(3))
    errors = []
    for rounds in (0, 1, 10):
        entries = kmeans(vectors, torch.ones(2000), 32, rounds)
        errors.append(float((vectors - entries[nearest(vectors, entries)]).square().sum()))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.85 * errors[0]


def test_important_vectors_are_met_more_closely() -> None:
    vectors = torch.randn(2000, 4, generator=torch.Generator().manual_seed(2))
    importance = torch.ones(2000)
    importance[:200] = 1000
    entries = kmeans(vectors, importance, 32, rounds=10)
    errors = (vectors - entries[nearest(vectors, entries)]).square().sum(1)
    assert float(errors[:200].mean()) < float(errors[200:].mean()) / 1.3


def test_a_sample_has_the_important_vectors_and_stands_for_the_others() -> None:
    importance = torch.rand(10_000, generator=torch.Generator().manual_seed(4))
    importance[::500] = 1e6
    chosen, counts = sample(importance, 1000)
    assert len(chosen.unique()) == 1000
    assert set(range(0, 10_000, 500)) <= set(chosen.tolist())
    others = importance[chosen] < 1
    assert float(counts[others].sum()) == pytest.approx(
        float(importance[importance < 1].sum()), rel=0.1
    )
    assert torch.equal(counts[~others], importance[chosen][~others])


def test_all_vectors_are_taken_where_no_more_are_wanted() -> None:
    importance = torch.tensor([3.0, 0.0, 1.0])
    chosen, counts = sample(importance, 3)
    assert chosen.tolist() == [0, 1, 2]
    assert torch.equal(counts, importance)


def test_a_column_with_nearly_all_of_the_energy_is_met_in_a_sample() -> None:
    weights = torch.randn(256, 64, generator=torch.Generator().manual_seed(5))
    inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(6))
    inputs[:, 5] *= 1000
    products = inputs.t() @ inputs
    books = Codebooks(4, 128)
    settings = Settings(rounds=5, samples=2, dampening=0.01, act_order=True)
    tensors = solve(weights, Factor.of(products, settings), books, settings, torch.float32)
    rounded = VectorLayer(books, *weights.shape, tensors).dequantize()
    error = (inputs @ (rounded - weights).t()).square().sum()
    assert float(error) < 0.01 * float((inputs @ weights.t()).square().sum())


def test_fewer_vectors_than_entries_are_met_exactly() -> None:
    vectors = torch.randn(5, 4)
    entries = kmeans(vectors, torch.ones(5), 8, rounds=2)
    assert torch.allclose(entries[nearest(vectors, entries)], vectors)


def test_later_columns_compensate_for_errors(weights: torch.Tensor, inputs: torch.Tensor) -> None:
    """The output's error is smaller than with codebooks that know nothing of the inputs."""
    products = inputs.t() @ inputs
    compensated = stored(weights, products, SETTINGS)
    plain = stored(weights, torch.eye(COLUMNS), SETTINGS)
    errors = [float(((weights - other) @ inputs.t()).norm()) for other in (compensated, plain)]
    assert errors[0] < errors[1] / 2


def test_the_same_input_gives_the_same_tensors(weights: torch.Tensor, inputs: torch.Tensor) -> None:
    products = inputs.t() @ inputs
    assert torch.equal(stored(weights, products, SETTINGS), stored(weights, products, SETTINGS))


def test_columns_whose_input_is_always_zero_do_no_harm(
    weights: torch.Tensor, inputs: torch.Tensor
) -> None:
    inputs = inputs.clone()
    inputs[:, 7] = 0
    other = stored(weights, inputs.t() @ inputs, SETTINGS)
    assert torch.isfinite(other).all()
    error = ((weights - other) @ inputs.t()).norm() / (weights @ inputs.t()).norm()
    assert float(error) < 0.5
