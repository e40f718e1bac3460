"""The custom op, in plain PyTorch on the CPU."""

import pytest
import torch

from serve.kernels import define, op
from serve.kernels.op import Planned, linear, put
from serve.kernels.plans.plan import Plan, Step
from tests.serve.kernels.products_for_tests import Few, Plain, Rounded, int8_weight

PLAN = Plan((Step(8, "few"), Step(None, "rounded")))


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    monkeypatch.setattr(op, "_TABLE", {})
    products = (Few(), Rounded())
    prepared = [product.prepare(int8_weight()) for product in products]
    # Each product's scales differ, so that the result tells which of them ran.
    prepared[1][1] = prepared[1][1] * 2
    put("int8/48x64", Planned(products, (2, 2), PLAN))
    return [tensor for of_product in prepared for tensor in of_product]


def activations(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    codes = torch.randint(-127, 128, (tokens, 64), generator=generator, dtype=torch.int8)
    scales = torch.rand(tokens, 1, generator=generator) + 0.5
    return codes.float() * scales, codes, scales


def expected(plain: torch.Tensor, factor: float) -> torch.Tensor:
    weight = int8_weight()
    return plain @ (weight.codes.float() * weight.scales * factor).t()


@pytest.mark.parametrize(("tokens", "factor"), [(1, 1.0), (8, 1.0), (9, 2.0), (70, 2.0)])
def test_the_number_of_tokens_chooses_the_product(
    tensors: list[torch.Tensor], tokens: int, factor: float
) -> None:
    plain, rounded, scales = activations(tokens)
    result = linear(plain, rounded, scales, tensors, "int8/48x64", 48)
    torch.testing.assert_close(result, expected(plain, factor), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("tokens", "factor"), [(4, 1.0), (70, 2.0)])
def test_the_caller_may_apply_the_scales(
    tensors: list[torch.Tensor], tokens: int, factor: float
) -> None:
    plain, rounded, scales = activations(tokens)
    result = linear(plain, rounded, scales, tensors, "int8/48x64", 48, scales_after=True)
    torch.testing.assert_close(result * scales, expected(plain, factor), rtol=1e-3, atol=1e-2)


def test_no_tokens(tensors: list[torch.Tensor]) -> None:
    assert linear(torch.empty(0, 64), None, None, tensors, "int8/48x64", 48).shape == (0, 48)


def test_the_op_keeps_torchs_rules(tensors: list[torch.Tensor]) -> None:
    plain, rounded, scales = activations(4)
    checks = ("test_schema", "test_faketensor")
    arguments = (plain, rounded, scales, tensors, "int8/48x64", 48)
    torch.library.opcheck(torch.ops.quantline.linear.default, arguments, test_utils=checks)


def test_a_second_registration_changes_nothing(tensors: list[torch.Tensor]) -> None:
    libraries = dict(define._LIBRARIES)
    op.register()
    assert libraries == define._LIBRARIES
    assert op.NAME in libraries


def test_what_a_planned_layer_needs() -> None:
    assert Planned((Few(), Rounded()), (2, 2), PLAN).reads_rounded
    only_plain = Plan((Step(None, "plain"),))
    assert not Planned((Plain(), Rounded()), (2, 2), only_plain).reads_rounded
    with pytest.raises(ValueError, match="products that are not there"):
        Planned((Plain(),), (2,), PLAN)
    with pytest.raises(ValueError, match="number of tensors"):
        Planned((Few(), Rounded()), (2,), PLAN)


def test_one_traced_graph_serves_all_numbers_of_tokens(tensors: list[torch.Tensor]) -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    @torch.compile(backend=keep, dynamic=True, fullgraph=True)
    def layer(plain: torch.Tensor, rounded: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return linear(plain + 1 - 1, rounded, scales, tensors, "int8/48x64", 48) * 3

    for tokens, factor in ((5, 3.0), (40, 6.0), (7, 3.0)):
        plain, rounded, scales = activations(tokens)
        torch.testing.assert_close(
            layer(plain, rounded, scales), expected(plain, factor), rtol=1e-3, atol=1e-2
        )
    assert len(graphs) == 1
    assert "quantline.linear" in str(graphs[0].graph)
