"""A kernel class of ours loads a layer on a CPU, with products in plain PyTorch."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.model_executor.kernels.linear import Int8ScaledMMLinearLayerConfig

from serve.kernels import record
from serve.kernels.linear import int8, planning
from serve.kernels.linear.choice import ROUNDING
from serve.kernels.plans.planner import Planner
from serve.kernels.plans.store import Identity, PlanStore
from serve.kernels.products.product import Unusable
from serve.kernels.record import TokenRange
from tests.serve.kernels.linear.made import (
    COLUMNS,
    FewInPlain,
    FewInRounded,
    OwnInRounded,
    Wrong,
    int8_layer,
    timed,
)

NAMES = ("weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj")


class CutlassStandIn:
    """Stands for vLLM's own kernel."""

    def __init__(self, *_: Any) -> None:
        self.processed: list[torch.Size] = []

    def process_weights_after_loading(self, layer: Any) -> None:
        self.processed.append(layer.weight.shape)

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: Any) -> torch.Tensor:
        return torch.full((1,), 7.0)


@pytest.fixture
def times() -> dict[str, float]:
    return {"cutlass_int8": 10.0, "few_rounded": 8.0, "few_plain": 5.0, "wrong": 1.0}


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: dict[str, float]) -> None:
    """An engine on a CPU that asks for our kernels, with a clock and a store of its own."""
    for name in ("not_offered", "capability_refusal", "engine_refusal"):
        monkeypatch.setattr(int8, name, lambda *_: None)
    monkeypatch.setattr(int8, "asked_families", lambda: ("one_token",))
    monkeypatch.setattr(int8, "vllms_choice", lambda *_: CutlassStandIn)
    monkeypatch.setattr(int8, "CutlassInt8", OwnInRounded)
    store = PlanStore(Identity("made", "torch", "vllm"))
    monkeypatch.setattr(type(store.identity), "path", property(lambda _: tmp_path / "plans.json"))
    planner = Planner(lambda: store, timed(times))
    monkeypatch.setattr(planning, "planner", lambda second_layout: planner)
    record.forget()


def kernel(monkeypatch: pytest.MonkeyPatch, *products: Any) -> Any:
    monkeypatch.setattr(int8, "products_of", lambda *_: list(products))
    config = Int8ScaledMMLinearLayerConfig(False, True, True)
    return int8.QuantlineInt8LinearKernel(config, NAMES)


def right(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x.float() @ (layer.weight.float() * layer.weight_scale.float()).t()


def off(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.float() - expected).norm() / expected.norm())


def test_a_loaded_layer_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = int8_layer()
    ours = kernel(monkeypatch, FewInPlain())
    x = torch.randn(2, 3, COLUMNS).to(torch.bfloat16)
    expected, many = right(layer, x), torch.randn(40, COLUMNS).to(torch.bfloat16)
    expected_many = right(layer, many)
    ours.process_weights_after_loading(layer)
    assert ours.loaded.passes_plain
    assert ours.loaded.passes_rounded
    out = ours.apply_weights(layer, x, torch.ones(96, dtype=torch.bfloat16))
    assert out.shape == (2, 3, 96)
    assert off(out, expected + 1) < 0.01
    assert off(ours.apply_weights(layer, many), expected_many) < 0.02


def test_the_weights_are_parameters_and_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = int8_layer()
    codes = layer.weight.data_ptr()
    ours = kernel(monkeypatch, FewInPlain())
    ours.process_weights_after_loading(layer)
    parameters = dict(layer.named_parameters())
    assert parameters["weight"].numel() == 0
    held = [name for name, one in parameters.items() if one.data_ptr() == codes]
    assert len(held) == 1, "both products read the same copy"
    assert ours.loaded.tensors.count(held[0]) == 2


def test_a_second_call_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = int8_layer()
    ours = kernel(monkeypatch, FewInPlain())
    ours.process_weights_after_loading(layer)
    before = ours.loaded
    ours.process_weights_after_loading(layer)
    assert ours.loaded is before
    assert ours.vllms.processed == []


def test_two_layers_share_a_plan_and_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [int8_layer(seed=seed) for seed in range(2)]
    loaded = []
    for layer in layers:
        ours = kernel(monkeypatch, FewInPlain())
        ours.process_weights_after_loading(layer)
        loaded.append(ours.loaded)
    assert loaded[0] == loaded[1]


def test_a_small_gain_is_not_worth_a_second_input(
    monkeypatch: pytest.MonkeyPatch, times: dict[str, float]
) -> None:
    times |= {"few_rounded": 5.1 - ROUNDING}
    layer = int8_layer()
    ours = kernel(monkeypatch, FewInPlain(), FewInRounded())
    x = torch.randn(4, COLUMNS).to(torch.bfloat16)
    expected = right(layer, x)
    ours.process_weights_after_loading(layer)
    assert not ours.loaded.passes_plain
    assert off(ours.apply_weights(layer, x), expected) < 0.02


def test_a_forward_is_traced_whole_for_all_numbers_of_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for products in ((FewInPlain(),), (FewInRounded(),)):
        layer = int8_layer((64,) if isinstance(products[0], FewInRounded) else (32,))
        ours = kernel(monkeypatch, *products)
        ours.process_weights_after_loading(layer)
        traced = torch.compile(
            lambda x, layer=layer, ours=ours: ours.apply_weights(layer, torch.tanh(x)),
            backend="aot_eager", fullgraph=True, dynamic=True,
        )  # fmt: skip
        for tokens in (2, 40, 7):
            x = torch.randn(tokens, COLUMNS).to(torch.bfloat16)
            plain = ours.apply_weights(layer, torch.tanh(x))
            assert off(traced(x), plain.float()) < 0.01


def test_a_wrong_product_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layer = int8_layer()
    ours = kernel(monkeypatch, Wrong())
    with caplog.at_level("INFO", logger="vllm.quantline"):
        ours.process_weights_after_loading(layer)
    assert ours.loaded is None
    assert ours.vllms.processed == [torch.Size((96, COLUMNS))]
    assert ours.apply_weights(layer, torch.ones(1, COLUMNS)).item() == 7.0
    (kernels,) = record.read_log(caplog.text)
    assert "wrong" in kernels.refused["all"]
    assert kernels.ranges == (TokenRange(None, "cutlass_int8"),)


def test_a_failure_at_the_end_finds_the_layer_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the log's disk is full")

    monkeypatch.setattr(record, "note", fail)
    layer = int8_layer()
    ours = kernel(monkeypatch, FewInPlain())
    ours.process_weights_after_loading(layer)
    assert ours.loaded is None
    assert ours.vllms.processed == [torch.Size((96, COLUMNS))], "vLLM's own path finds the weight"


def test_the_head_is_measured_for_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    def plan(_: Any, request: Any) -> Any:
        requests.append(request)
        raise Unusable("not here")

    monkeypatch.setattr(Planner, "plan", plan)
    head: Any = int8_layer()
    head.org_vocab_size = 96
    for layer in (head, int8_layer()):
        kernel(monkeypatch, FewInPlain()).process_weights_after_loading(layer)
    assert [max(request.tokens) for request in requests] == [1024, 8192]
    assert [request.key for request in requests] == ["int8/96x128/head", "int8/96x128"]


def test_an_error_of_ours_leaves_the_layer_to_vllm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(int8, "int8_weight", fail)
    layer = int8_layer()
    ours = kernel(monkeypatch, FewInPlain())
    ours.process_weights_after_loading(layer)
    assert ours.vllms.processed == [torch.Size((96, COLUMNS))]
    assert "model.layers.0.mlp.up is left to vLLM: no such thing" in caplog.text


def test_graphs_of_a_layer_that_was_left_have_a_key_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts: list[str] = []
    monkeypatch.setattr(record, "add_to_graph_key", facts.append)
    kernel(monkeypatch, Wrong()).process_weights_after_loading(int8_layer())
    ran = (TokenRange(None, "cutlass_int8"),)
    record.note(record.LayerKernels("int8", 96, COLUMNS, ran), "model.layers.0.mlp.up")
    assert len(set(facts)) == 2
