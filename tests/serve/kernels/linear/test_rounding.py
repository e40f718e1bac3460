"""INT8 rounding by token, as vLLM's kernel rounds."""

import torch

from serve.kernels.linear.rounding import round_int8


def test_the_largest_of_a_token_becomes_127() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [100.0, 50.0, -100.0, 1.0]])
    rounded, scales = round_int8(x.to(torch.bfloat16))
    assert rounded.dtype == torch.int8
    assert rounded.tolist() == [[64, -127, 32, 0], [0, 0, 0, 0], [127, 64, -127, 1]]
    assert scales.shape == (3, 1)
    assert scales.dtype == torch.float32


def test_half_of_a_step_is_all_that_is_lost() -> None:
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    rounded, scales = round_int8(x)
    assert ((rounded * scales - x.float()).abs() <= scales * 0.5001).all()
