"""The kernels of attention on a GPU, against float64."""

import math
from functools import partial

import pytest
import torch

from serve.kernels.attention.launch import decode_options, rotate, store
from serve.kernels.attention.planning import options_for
from serve.kernels.attention.proof import check, prepared
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.products.compiling import run_once
from tests.serve.kernels.attention.made import attention_error, made, moved

LENGTHS = [1, 5, 33, 100, 0, 127, 128, 17, 2]
SHAPES = [
    Shape(32, 8, 128, torch.bfloat16),
    Shape(12, 2, 128, torch.float16),
    Shape(14, 2, 64, torch.bfloat16),
    Shape(8, 8, 64, torch.bfloat16),
    Shape(8, 1, 256, torch.bfloat16),
]
ROUNDING = {torch.bfloat16: 0.03, torch.float16: 0.004}

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rope", ["", "rope", "norm"])
@pytest.mark.parametrize("layout", [4, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(shape: Shape, layout: int, rope: str) -> None:
    for split, eager, tokens, warps in ((64, 2, 16, 1), (1, 1, 32, 1), (8, 8, 64, 4)):
        one = made(shape, LENGTHS, rope=rope, layout=layout, device="cuda")
        options = decode_options(tokens, split, warps, 3, eager, int(split > 1))
        assert attention_error(one, options) < ROUNDING[shape.dtype]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_options_are_proven(shape: Shape) -> None:
    device = torch.device("cuda")
    every = {options for requests in (1, 8, 64) for options in options_for(shape, requests)}
    run_once([partial(check, shape, options, device) for options in every], math.inf)
    for options in every:
        check(shape, options, device)


@pytest.mark.parametrize("kind", ["rope", "norm"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rotating(shape: Shape, kind: str) -> None:
    rope = moved(made(shape, [1], rope=kind), "cuda").rope
    assert rope is not None
    heads = shape.heads + 2 * shape.key_heads
    positions = torch.randint(0, 1024, (700,), device="cuda")
    qkv = torch.randn(700, heads * shape.width, device="cuda").to(shape.dtype)
    before = qkv.clone().view(700, heads, shape.width)
    rotate(shape, qkv, positions, rope)
    parts = before.split([shape.heads, shape.key_heads, shape.key_heads], dim=1)
    right = [
        prepared(parts[0], positions, rope, is_key=False),
        prepared(parts[1], positions, rope, is_key=True),
        parts[2].double(),
    ]
    error = (qkv.view_as(before).double() - torch.cat(right, dim=1)).abs().max()
    assert error < 2 * ROUNDING[shape.dtype]


def test_storing() -> None:
    shape = SHAPES[0]
    keys, values = torch.randn(2, 5000, 8, 128, device="cuda").to(shape.dtype)
    cache = Cache.of(torch.zeros(400, 2, 16, 8, 128, dtype=shape.dtype, device="cuda"), 128)
    slots = torch.randperm(6400, device="cuda")[:5000]
    slots[7] = -1
    store(keys, values, cache, slots)
    kept = slots >= 0
    places = slots[kept] // 16, slots[kept] % 16
    assert torch.equal(cache.keys[places], keys[kept])
    assert torch.equal(cache.values[places], values[kept])
    assert cache.keys.abs().sum(dim=(2, 3)).count_nonzero() == 4999
