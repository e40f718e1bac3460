"""The chain of layers of a small decoder: who requests whose weights."""

import logging
from collections.abc import Iterator

import pytest
import torch

from serve.kernels import op, successors
from serve.kernels.op import Planned, linear
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.products.product import Inputs, Options
from serve.kernels.products.streamed.dense import StreamedFp8
from serve.kernels.products.upcoming import Reads, Upcoming
from serve.kernels.successors import ORDER, link, predecessor
from tests.serve.kernels.products_for_tests import Few, Plain, int8_weight

ROWS, COLUMNS, LAYERS = 48, 64, 3


class Requesting(Few):
    """Keeps what it is asked to request."""

    takes_upcoming = True
    kept: list[Upcoming | None]

    def __init__(self) -> None:
        self.kept = []

    def reads(self, tensors: list[torch.Tensor], options: Options, tokens: int) -> Reads:
        return Reads(tensors[0], COLUMNS, ROWS)

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        self.kept.append(inputs.upcoming)
        return super().multiply(inputs, tensors, options)


class Disturbed(Requesting):
    """Is wrong where it requests something."""

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        return super().multiply(inputs, tensors, options) + (inputs.upcoming is not None)


class Decoder(torch.nn.Module):
    """Linear layers with vLLM's names, and others between them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(count))
        for layer in self.layers:
            layer.self_attn, layer.mlp = torch.nn.Module(), torch.nn.Module()
            layer.input_layernorm = torch.nn.Identity()
            for path in ORDER:
                parent, name = path.split(".")
                linear_layer = torch.nn.Module()
                weight = int8_weight(ROWS, COLUMNS)
                linear_layer.codes = torch.nn.Parameter(weight.codes.clone(), requires_grad=False)
                linear_layer.scales = torch.nn.Parameter(weight.scales.clone(), requires_grad=False)
                layer.get_submodule(parent).add_module(name, linear_layer)
        self.lm_head = torch.nn.Identity()

    def linears(self) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """In the order in which vLLM loads them."""
        for name, module in self.named_modules():
            if hasattr(module, "codes"):
                yield f"model.{name}", [module.codes, module.scales]


@pytest.fixture(autouse=True)
def nothing_is_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "_TABLE", {})
    monkeypatch.setattr(op, "_UPCOMING", {})
    monkeypatch.setattr(successors, "_LOADED", {})
    monkeypatch.setattr(successors, "_PROVEN", {})


def planned(product: Requesting) -> Planned:
    return Planned((product, Plain()), (2, 0), Plan((Step(8, "few"), Step(None, "plain"))))


def loaded(model: Decoder, product: Requesting, left_out: str = "none") -> Planned:
    """Links all layers of a model but those that are left to vLLM."""
    plan = planned(product)
    op.put("key", plan)
    for name, tensors in model.linears():
        if not name.endswith(left_out):
            link(name, "key", plan, tensors, COLUMNS, torch.float32)
    product.kept.clear()
    return plan


def requested(model: Decoder, product: Requesting) -> list[int | None]:
    """Runs all layers of one token; what each requests, as the number of a layer."""
    numbers = {tensors[0].data_ptr(): i for i, (_, tensors) in enumerate(model.linears())}
    for _, tensors in model.linears():
        linear(torch.ones(1, COLUMNS), None, None, tensors, "key", ROWS)
    return [None if window is None else numbers[window.address] for window in product.kept]


def test_names() -> None:
    assert predecessor("model.layers.3.self_attn.qkv_proj") == "model.layers.2.mlp.down_proj"
    assert predecessor("model.layers.3.mlp.down_proj") == "model.layers.3.mlp.gate_up_proj"
    assert predecessor("layers.0.self_attn.o_proj") == "layers.0.self_attn.qkv_proj"
    for name in (
        "", "lm_head", "model.layers.0.self_attn.qkv_proj", "model.layers.1.mlp.gate",
        "model.layers.1.mlp.experts.down_proj", "model.layers.x.mlp.down_proj",
    ):  # fmt: skip
        assert predecessor(name) is None, name


def test_each_layer_requests_the_next_one() -> None:
    model, product = Decoder(LAYERS), Requesting()
    loaded(model, product)
    assert requested(model, product) == [*range(1, 4 * LAYERS), None]
    (window, *_) = product.kept
    assert window is not None
    assert window.pieces * window.piece_bytes == ROWS * COLUMNS


def test_a_layer_that_is_left_to_vllm_breaks_the_chain() -> None:
    model, product = Decoder(2), Requesting()
    loaded(model, product, left_out="o_proj")
    assert requested(model, product) == [None, None, 3, 4, None, None, 7, None]


def test_other_numbers_of_tokens_run_other_products() -> None:
    model, product = Decoder(1), Requesting()
    plan = loaded(model, product)
    assert plan.reads([torch.empty(ROWS, COLUMNS)], 8) is not None
    assert plan.reads([torch.empty(ROWS, COLUMNS)], 9) is None


def test_prompts_request_nothing_and_leave_nothing_behind() -> None:
    model = Decoder(1)
    loaded(model, Requesting())
    (_, first), *_ = model.linears()
    upcoming = op._UPCOMING[first[0].data_ptr()]
    assert upcoming(8) is not None
    kept = [dict(layer.windows) for layer in successors._LOADED.values()]
    assert [upcoming(tokens) for tokens in (9, 600, 8192)] == [None] * 3
    assert [layer.windows for layer in successors._LOADED.values()] == kept


def test_a_layer_that_is_gone_is_not_requested() -> None:
    model, product = Decoder(1), Requesting()
    loaded(model, product)
    (_, first), (_, second), *_ = model.linears()
    (upcoming,) = [op._UPCOMING[first[0].data_ptr()]]
    assert upcoming(1) is not None
    del second, model.layers[0].self_attn.o_proj
    assert upcoming(1) is None


def test_a_kernel_that_is_disturbed_requests_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model, product = Decoder(1), Disturbed()
    with caplog.at_level(logging.INFO, logger="vllm.quantline"):
        loaded(model, product)
    assert op._UPCOMING == {}
    assert "key requests weights of key: False" in caplog.text


def test_a_failure_costs_no_layer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Requesting, "reads", fail)
    loaded(Decoder(1), Requesting())
    assert op._UPCOMING == {}
    assert "is not requested by the layer before: no memory" in caplog.text


def test_one_graph_for_layers_that_request_different_weights() -> None:
    model, product = Decoder(1), Requesting()
    loaded(model, product)
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    @torch.compile(backend=keep, fullgraph=True)
    def layer(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return linear(x, None, None, [codes, scales], "key", ROWS)

    weights = [tensors for _, tensors in model.linears()]
    for tensors in weights:
        layer(torch.ones(1, COLUMNS), *tensors)
    addresses = [None if window is None else window.address for window in product.kept]
    assert addresses == [*(tensors[0].data_ptr() for tensors in weights[1:]), None]
    assert len(graphs) == 1


@pytest.mark.gpu
def test_a_captured_graph_on_a_gpu() -> None:
    """Products that follow each other, with and without requests."""
    size, product = 2048, StreamedFp8()
    options = product.options(size, size, 1)[0]
    plan = Plan((Step(16, product.name, options), Step(None, "plain")))
    planned_layer = Planned((product, Plain()), (2, 0), plan)
    op.put("key", planned_layer)
    weights = []
    for _ in ORDER:
        codes = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn)
        weights.append([codes, torch.full((size,), size**-0.5, device="cuda")])
    x = torch.randn(1, size, device="cuda").to(torch.bfloat16)

    def run() -> torch.Tensor:
        out = x
        for tensors in weights:
            out = linear(out, None, None, tensors, "key", size)
        return out

    expected = run()
    for name, tensors in zip(ORDER, weights, strict=True):
        link(f"layers.0.{name}", "key", planned_layer, tensors, size, torch.bfloat16)
    assert [*op._UPCOMING] == [tensors[0].data_ptr() for tensors in weights[:-1]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
