"""Graphs of few tokens round nothing, those of many read no plain activations."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm.config
from torch.fx.experimental.proxy_tensor import make_fx
from vllm.compilation.passes.inductor_pass import pass_context
from vllm.config.utils import Range

from serve.kernels import op
from serve.kernels.linear import ranges
from serve.kernels.linear.loading import LoadedLayer, multiply
from serve.kernels.linear.ranges import InputsPass, boundaries, reads_in, split_ranges
from serve.kernels.linear.rounding import round_int8
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.products.product import Inputs, Options
from tests.conftest import ROOT
from tests.serve.kernels.linear.made import COLUMNS, FewInPlain, OwnInRounded, int8_layer

KEY = "int8/96x128/made"
PLANNED = op.Planned(
    (FewInPlain(), OwnInRounded()),
    (2, 2),
    Plan(
        (Step(4, "few_plain", (("split", 2),)), Step(16, "few_plain"), Step(None, "cutlass_int8"))
    ),
)


class SumsInRounded(OwnInRounded):
    """Leaves the scales of the activations to the caller."""

    scales_after = True

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        scales = inputs.plain.new_ones(()) if inputs.scales is None else inputs.scales
        return super().multiply(replace(inputs, scales=scales), tensors, options)


@pytest.fixture(params=[False, True], ids=["", "scales after"])
def graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.fx.GraphModule:
    """A norm and a layer after it, traced for any number of tokens."""
    after: bool = request.param
    if after:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layer: Any = int8_layer()
    for number, tensor in enumerate((layer.weight, layer.weight_scale) * 2):
        layer.register_parameter(f"q{number}", tensor)
    own = SumsInRounded() if after else OwnInRounded()
    op.put(KEY, replace(PLANNED, products=(FewInPlain(), own)))
    loaded = LoadedLayer(KEY, 96, ("q0", "q1", "q2", "q3"), True, True, after)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return multiply(layer, loaded, torch.tanh(x), round_int8)

    x = torch.randn(8, COLUMNS).to(torch.bfloat16)
    return make_fx(forward, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)


def test_a_plan_changes_its_inputs_at_boundaries() -> None:
    assert boundaries(PLANNED) == [16]
    few = Plan((Step(1, "few_plain"), Step(None, "cutlass_int8")))
    assert boundaries(replace(PLANNED, plan=few)) == [16], "no range of one number of tokens"
    middle = Plan((Step(32, "few_plain"), Step(64, "cutlass_int8"), Step(None, "few_plain")))
    assert boundaries(replace(PLANNED, plan=middle)) == [16, 128]
    assert reads_in(PLANNED, 1, 16) == {False}
    assert reads_in(PLANNED, 17, 8192) == {True}
    assert reads_in(PLANNED, 8, 32) == {True, False}


@pytest.mark.parametrize(
    ("start", "end", "rounds", "has_columns"),
    [(1, 16, False, True), (17, 8192, True, False), (1, 8192, True, True)],
)
def test_a_graph_has_only_the_inputs_of_its_range(
    graph: torch.fx.GraphModule, start: int, end: int, rounds: bool, has_columns: bool
) -> None:
    after = torch.compiler.is_compiling()
    x = torch.randn(end if end <= 16 else 40, COLUMNS).to(torch.bfloat16)
    expected = graph(x)
    with pass_context(Range(start, end)):
        InputsPass(512)(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    targets = {node.target for node in graph.graph.nodes}
    assert (torch.ops.aten.round.default in targets) is rounds
    (node,) = graph.graph.find_nodes(op="call_function", target=torch.ops.quantline.linear.default)
    assert (node.args[1] is not None) is rounds
    assert (node.args[6:] == (True,)) is (after and rounds), "no scales of plain activations"
    assert bool(node.args[0].meta["val"].shape[1] == COLUMNS) is has_columns
    torch.testing.assert_close(graph(x), expected, rtol=0.02 if after else 0, atol=0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine that captures up to 512 tokens."""
    compilation = SimpleNamespace(compile_ranges_endpoints=[8192], max_cudagraph_capture_size=512)
    config = SimpleNamespace(compilation_config=compilation, additional_config={"quantline": {}})
    monkeypatch.setattr(vllm.config, "get_current_vllm_config_or_none", lambda: config)
    monkeypatch.setattr(ranges, "_install_pass", lambda: setattr(config, "has_pass", True))
    return config


def test_vllm_compiles_a_range_up_to_the_boundary(engine: Any) -> None:
    compilation = engine.compilation_config
    split_ranges(PLANNED)
    split_ranges(PLANNED)
    assert compilation.compile_ranges_endpoints == [16, 8192]
    assert engine.has_pass
    assert engine.additional_config["quantline"]["layers"], "part of the key of compiled graphs"
    full = [1, 2, 3, 4, 8192]
    compilation.compile_ranges_endpoints = full.copy()
    split_ranges(PLANNED)
    assert compilation.compile_ranges_endpoints == full, "enough to compile"
    compilation.compile_ranges_endpoints = None  # vLLM compiles nothing
    split_ranges(PLANNED)
    assert compilation.compile_ranges_endpoints is None


class Traceable(OwnInRounded):
    traceable = True


@pytest.mark.parametrize(
    ("steps", "captured", "ends"),
    [
        ((16, None), 512, [16, 512, 8192]),
        ((16, 512, 2048, None), 512, [16, 512, 2048, 8192]),
        ((16, 1024, 2048, 4096, None), 512, [16, 512, 2048, 8192]),
        ((16, None), 0, [16, 8192]),
        ((16, None), 17, [16, 8192]),
        ((16, None), 8192, [16, 8192]),
    ],
    ids=["one", "two beyond", "too many", "none captured", "one token between", "all captured"],
)
def test_ranges_beyond_what_is_captured_have_one_product(
    engine: Any, steps: tuple[int | None, ...], captured: int, ends: list[int]
) -> None:
    names = ["few_plain", *["cutlass_int8"] * (len(steps) - 1)]
    plan = Plan(tuple(Step(end, name) for end, name in zip(steps, names, strict=True)))
    engine.compilation_config.max_cudagraph_capture_size = captured
    split_ranges(replace(PLANNED, products=(FewInPlain(), Traceable()), plan=plan))
    assert engine.compilation_config.compile_ranges_endpoints == ends


def test_products_that_graphs_cannot_call_take_no_range(engine: Any) -> None:
    ends = (1024, 4096, None)
    names = ("few_plain", "few_plain", "cutlass_int8")
    plan = Plan(tuple(Step(end, name) for end, name in zip(ends, names, strict=True)))
    split_ranges(replace(PLANNED, products=(FewInPlain(), Traceable()), plan=plan))
    assert {1024, 512}.isdisjoint(engine.compilation_config.compile_ranges_endpoints)
    assert 4096 in engine.compilation_config.compile_ranges_endpoints


def test_a_further_layer_finds_room_for_its_inputs(engine: Any) -> None:
    first = Plan(tuple(Step(end, "cutlass_int8") for end in (1024, 2048, 4096, None)))
    split_ranges(replace(PLANNED, products=(FewInPlain(), Traceable()), plan=first))
    further = Plan((Step(16, "few_plain"), Step(128, "few_plain"), Step(None, "cutlass_int8")))
    split_ranges(PLANNED)
    split_ranges(replace(PLANNED, plan=further))
    ends = engine.compilation_config.compile_ranges_endpoints
    assert ends == [16, 128, 512, 2048, 8192]


def test_the_pass_is_added_to_engines_of_ours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    monkeypatch.setattr(PostGradPassManager, "configure", lambda self, config: None)
    ranges._install_pass()
    ranges._install_pass()
    manager = PostGradPassManager()
    manager.configure(SimpleNamespace(additional_config={}))
    assert manager.passes == []
    compilation = SimpleNamespace(max_cudagraph_capture_size=512)
    manager.configure(
        SimpleNamespace(additional_config={"quantline": {}}, compilation_config=compilation)
    )
    assert [type(one) for one in manager.passes] == [InputsPass]
    assert manager.passes[0].uuid() != InputsPass(0).uuid()


def test_a_model_without_quantized_layers_compiles() -> None:
    """In a process of its own: no other test has defined our ops there."""
    code = (
        "import torch\n"
        "from vllm.compilation.passes.inductor_pass import pass_context\n"
        "from vllm.config.utils import Range\n"
        "from serve.kernels.linear.ranges import InputsPass\n"
        "graph = torch.fx.Graph()\n"
        "graph.output(graph.placeholder('x'))\n"
        "for start, end in ((1, 16), (600, 700)):\n"
        "    with pass_context(Range(start, end)):\n"
        "        InputsPass(512)(graph)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr[-2000:]
