"""Rounding is fused with the norm or silu before it, in graphs of a decoder layer."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("vllm")

from vllm.compilation.passes.inductor_pass import pass_context
from vllm.config.utils import Range

from serve.kernels.linear.ranges import InputsPass
from serve.kernels.rounding import fusing
from tests.serve.kernels.rounding.layer import activations, traced


@pytest.fixture(params=[False, True], ids=["", "scales after"])
def after(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether products leave the scales of activations to what comes next."""
    if request.param:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    yield request.param
    monkeypatch.undo()


def targets(graph: torch.fx.Graph) -> Counter[str]:
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


def run_pass(module: torch.fx.GraphModule) -> None:
    with pass_context(Range(17, 8192)):
        InputsPass(512)(module.graph)
    module.graph.lint()
    module.recompile()


def test_a_layer_is_fused(after: bool) -> None:
    module = traced(after)
    given = activations(40)
    expected = module(*given)
    run_pass(module)
    counts = targets(module.graph)
    assert counts["quantline.add_norm_round.default"] == 2
    assert counts["quantline.silu_mul_round.default"] == 1
    assert counts["quantline.round_tokens.default"] == 1, "of the attention's result"
    assert counts["vllm_ir.fused_add_rms_norm.default"] == 0
    assert counts["aten.exp.default"] == 0
    assert counts["aten.mul.Tensor"] == (1 if after else 0), "only qkv's scales are left"
    for result, right in zip(module(*given), expected, strict=True):
        torch.testing.assert_close(result, right, rtol=0.05, atol=0.05)


def test_other_graphs_stay_as_they_are(
    after: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusing, "_SAID", set())
    module = traced(after, has_norms=False)
    module.graph.eliminate_dead_code()
    before = str(module.graph)
    with caplog.at_level(logging.DEBUG, logger="vllm.quantline"):
        run_pass(module)
        run_pass(module)
    assert str(module.graph) == before
    assert targets(module.graph)["quantline.round_tokens.default"] == 4
    said = [record.message for record in caplog.records if "not fused" in record.message]
    assert len(said) == len(set(said)) > 0, "once each"


def test_a_norm_that_something_else_reads_stays() -> None:
    module = traced(after=False)
    norm = torch.ops.vllm_ir.fused_add_rms_norm.default
    *_, last = module.graph.find_nodes(op="call_function", target=norm)
    normed = next(user for user in last.users if user.args[1] == 0)
    (output,) = module.graph.find_nodes(op="output")
    output.args = ((*output.args[0], normed),)
    run_pass(module)
    counts = targets(module.graph)
    assert counts["vllm_ir.fused_add_rms_norm.default"] == 1
    assert counts["quantline.add_norm_round.default"] == 1
    assert counts["quantline.round_tokens.default"] == 2


def test_numbers_of_the_ops_on_a_cpu_are_those_of_the_graph() -> None:
    """The fused ops differ from the graph by roundings to bfloat16 on the way only."""
    module = traced(after=False)
    x, residual = activations(16)
    _, right = module(x, residual)
    run_pass(module)
    _, fused = module(x, residual)
    assert (fused.float() - right.float()).abs().max() <= 2**-6 * right.float().abs().max()
