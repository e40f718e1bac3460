"""What a test draws and sees does not depend on the tests before it, nor on the process."""

import os

import pytest
import torch

from tests.conftest import SEED


@pytest.fixture(scope="module")
def drawn() -> float:
    return float(torch.rand(1))


@pytest.mark.parametrize("place", [0, 1])
def test_each_test_begins_with_the_same_seed(place: int) -> None:
    assert torch.initial_seed() == SEED
    expected = torch.rand(3, generator=torch.Generator().manual_seed(SEED))
    assert torch.equal(torch.rand(3), expected)


def test_fixtures_of_a_file_draw_after_the_seed_is_set(drawn: float) -> None:
    assert drawn == float(torch.rand(1, generator=torch.Generator().manual_seed(SEED)))


@pytest.mark.parametrize("place", [0, 1])
def test_variables_that_a_test_sets_end_with_it(place: int) -> None:
    assert "QUANTLINE_LEFT" not in os.environ
    assert os.environ["OMP_NUM_THREADS"]
    os.environ["QUANTLINE_LEFT"] = "1"
    del os.environ["OMP_NUM_THREADS"]
