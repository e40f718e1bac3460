"""X'X against float64 sums over all tokens."""

import pytest
import torch

from quantize.calibrate.solver.products import Products, SharedProducts

WIDTH = 37  # not a multiple of any strip


def batches(dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Two batches of sequences and one lone sequence."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, 9, WIDTH), (3, 5, WIDTH), (7, WIDTH)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def expected(inputs: list[torch.Tensor]) -> torch.Tensor:
    tokens = torch.cat([tensor.double().reshape(-1, WIDTH) for tensor in inputs])
    return tokens.T @ tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_summed_over_all_tokens(dtype: torch.dtype) -> None:
    products = Products(WIDTH, torch.device("cpu"))
    for inputs in batches(dtype):
        products.add(inputs)
    matrix = products.matrix()
    assert matrix.dtype == torch.float32
    assert torch.equal(matrix, matrix.T)
    assert torch.allclose(matrix.double(), expected(batches(dtype)), rtol=1e-4, atol=1e-4)


def test_modules_with_the_same_inputs_share_a_matrix() -> None:
    query, key, output = (torch.nn.Linear(WIDTH, 2) for _ in range(3))
    products = SharedProducts()
    for shared, own in zip(batches(torch.float32), batches(torch.float32, 1), strict=True):
        products.add(query, shared)
        products.add(key, shared)
        products.add(output, own)
    matrices = list(products.take())
    assert [group for group, _ in matrices] == [(query, key), (output,)]
    for (_, matrix), seed in zip(matrices, (0, 1), strict=True):
        assert torch.allclose(
            matrix.double(), expected(batches(torch.float32, seed)), rtol=1e-4, atol=1e-4
        )
    assert products.groups() == []


def test_modules_that_part_ways_have_their_own_sums() -> None:
    """Two modules get the same tensor in one batch and different ones in the next, as experts of a
    mixture may."""
    first, second = torch.nn.Linear(WIDTH, 2), torch.nn.Linear(WIDTH, 2)
    a, b, c = batches(torch.float32)
    products = SharedProducts()
    products.add(first, a)
    products.add(second, a)
    products.add(first, b)
    products.add(second, c)
    matrices = dict(products.take())
    assert torch.allclose(matrices[(first,)].double(), expected([a, b]), rtol=1e-4, atol=1e-4)
    assert torch.allclose(matrices[(second,)].double(), expected([a, c]), rtol=1e-4, atol=1e-4)
