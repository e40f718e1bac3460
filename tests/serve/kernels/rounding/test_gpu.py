"""The ops that round, on a GPU against plain PyTorch, called directly and launched by Inductor."""

from typing import Any

import pytest
import torch

from serve.kernels.rounding import ops, traced
from serve.kernels.rounding.lowering import lower

WIDTH, INNER = 4096, 12288
EPSILON = 1e-6
Results = tuple[torch.Tensor, ...]


def given(tokens: int) -> Results:
    """x, residual, weight of a norm, gates and ups."""
    torch.manual_seed(tokens)
    shapes = ((tokens, WIDTH), (tokens, WIDTH), (WIDTH,), (tokens, 2 * INNER))
    return tuple(torch.randn(shape, device="cuda").to(torch.bfloat16) for shape in shapes)


def rounded(of: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
            inner: torch.Tensor, floats: bool) -> Results:  # fmt: skip
    return (
        *of.round_tokens(x, floats),
        *of.silu_mul_round(inner, None, floats),
        *of.add_norm_round(x, None, residual, weight, EPSILON, floats),
    )


def assert_close(results: Results, right: Results) -> None:
    """Codes differ by one at most; FP8 codes are compared as numbers of their neighbours."""
    for one, other in zip(results, right, strict=True):
        if one.element_size() == 1:
            apart = (one.view(torch.int8).int() - other.view(torch.int8).int()).abs()
            assert bool(((apart <= 1) | (one.float() == other.float())).all())
        else:
            torch.testing.assert_close(one, other, rtol=0.01, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("floats", [False, True], ids=["int8", "fp8"])
@pytest.mark.parametrize("tokens", [1, 17, 769])
def test_ops(tokens: int, floats: bool) -> None:
    ops.register()
    tensors = given(tokens)
    found = rounded(torch.ops.quantline, *tensors, floats)
    assert_close(found, rounded(traced, *tensors, floats))


@pytest.mark.gpu
@pytest.mark.parametrize("floats", [False, True], ids=["int8", "fp8"])
def test_inductor_launches_the_kernels(floats: bool) -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    ops.register()
    lowered: list[int] = []

    class Lower(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            lowered.append(lower(graph))

        def uuid(self) -> None:
            return None

    def forward(*tensors: torch.Tensor) -> Results:
        x, residual, weight, inner = tensors
        return rounded(torch.ops.quantline, x, residual, weight, inner, floats)

    with config.patch(post_grad_custom_post_pass=Lower(), force_disable_caches=True):
        compiled = torch.compile(forward, fullgraph=True)
        for tokens in (40, 769):
            tensors = given(tokens)
            for tensor in (tensors[0], tensors[1], tensors[3]):  # as vLLM: tokens alone vary
                torch._dynamo.mark_dynamic(tensor, 0)
            assert_close(compiled(*tensors), forward(*tensors))
    assert lowered == [3]
