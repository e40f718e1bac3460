"""Modules are replaced only where the replacement gives the same, and are put back."""

import inspect
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compressed_tensors.offload import offload_module
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationScheme,
    disable_quantization,
    initialize_module_for_quantization,
)
from transformers import AutoConfig, AutoModelForCausalLM

from quantize.calibrate.elementwise.modules import fused_elementwise, replaced

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


class CountingKernels:
    """The kernels' functions in PyTorch; counts their calls."""

    def __init__(self, wrong: float = 1.0) -> None:
        self.calls: Counter[str] = Counter()
        self.wrong = wrong

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        self.calls["rms_norm"] += 1
        return torch.nn.functional.rms_norm(inputs, weight.shape, weight, epsilon) * self.wrong

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        self.calls["rotate"] += 1
        left, right = states.chunk(2, -1)
        turned = torch.cat((-right, left), -1)
        return (states * cos.unsqueeze(1) + turned * sin.unsqueeze(1)) * self.wrong

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        self.calls["silu_product"] += 1
        return torch.nn.functional.silu(gate) * up * self.wrong


def model_of(kind: str, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    config = AutoConfig.for_model(kind, **SIZES, **options)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(12).unsqueeze(0)).logits
    return found


@pytest.fixture
def kernels() -> Iterator[CountingKernels]:
    return CountingKernels()


@pytest.mark.parametrize("kind", ["qwen3", "llama", "mistral"])
@pytest.mark.parametrize("is_offloaded", [False, True])
def test_a_model_computes_with_the_kernels_and_then_as_before(
    kind: str, is_offloaded: bool, kernels: CountingKernels
) -> None:
    model = model_of(kind)
    if is_offloaded:
        for module in model.modules():
            offload_module(module, "cpu", "cpu")
    before = logits(model)
    with replaced(model, CPU, kernels):
        kernels.calls.clear()
        fused = logits(model)
    norms = 4 if kind == "qwen3" else 2
    assert kernels.calls == {"rms_norm": 2 * norms + 1, "rotate": 4, "silu_product": 2}
    assert torch.allclose(fused, before, atol=0.02 * float(before.abs().max()))
    kernels.calls.clear()
    assert torch.equal(logits(model), before)
    assert not kernels.calls


@pytest.mark.parametrize("is_offloaded", [False, True])
def test_a_model_that_is_about_to_be_quantized_computes_with_the_kernels(
    is_offloaded: bool, kernels: CountingKernels
) -> None:
    """Its linear layers have scales and zero points, whose types are not those of the weights."""
    model = model_of("qwen3")
    weights = QuantizationArgs(num_bits=4, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    for module in model.modules():
        if is_offloaded:
            offload_module(module, "cpu", "cpu")
        if isinstance(module, torch.nn.Linear):
            initialize_module_for_quantization(module, scheme)
    model.apply(disable_quantization)
    assert torch.int8 in {parameter.dtype for parameter in model.parameters()}
    with replaced(model, CPU, kernels):
        kernels.calls.clear()
        logits(model)
    assert kernels.calls == {"rms_norm": 9, "rotate": 4, "silu_product": 2}


@pytest.mark.parametrize(
    ("kind", "options", "left"),
    [
        ("gemma", {}, {"rms_norm", "silu_product"}),  # 1 + weight; GELU
        ("llama", {"hidden_act": "relu"}, {"silu_product"}),
    ],
)
def test_what_is_computed_otherwise_is_left(
    kind: str, options: dict[str, Any], left: set[str], kernels: CountingKernels
) -> None:
    model = model_of(kind, **options)
    before = logits(model)
    with replaced(model, CPU, kernels):
        kernels.calls.clear()
        assert torch.allclose(logits(model), before, atol=0.02 * float(before.abs().max()))
    assert not left & set(kernels.calls)


def test_kernels_that_give_something_else_are_not_used() -> None:
    model, kernels = model_of("qwen3"), CountingKernels(wrong=1.1)
    before = logits(model)
    with replaced(model, CPU, kernels):
        assert torch.equal(logits(model), before)


def test_kernels_that_fail_are_not_used() -> None:
    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("no such GPU")

    model = model_of("qwen3")
    broken = SimpleNamespace(rms_norm=fail, rotate=fail, silu_product=fail)
    with replaced(model, CPU, broken):
        logits(model)


def test_a_model_in_float32_and_a_cpu_are_left(kernels: CountingKernels) -> None:
    model = model_of("qwen3", torch.float32)
    with replaced(model, CPU, kernels):
        kernels.calls.clear()
        logits(model)
        assert set(kernels.calls) <= {"rotate"}
    with fused_elementwise(model_of("qwen3"), CPU):
        pass  # Triton is not imported


@pytest.mark.parametrize("offloaded", [False, True])
def test_a_replaced_module_takes_its_input_by_the_original_name(offloaded: bool) -> None:
    """AWQ records the calls of an MLP by the names of their arguments, and repeats them."""
    model = model_of("qwen3")
    layer, inputs = model.model.layers[0], torch.randn(1, 5, 64, dtype=torch.bfloat16)
    if offloaded:
        for module in layer.mlp.modules():
            offload_module(module, CPU, "cpu")
    names = list(inspect.signature(layer.mlp.forward).parameters)
    with torch.no_grad(), replaced(model, CPU, CountingKernels()) as _:
        assert torch.equal(layer.mlp(x=inputs), layer.mlp(inputs))
        norm = layer.input_layernorm
        assert torch.equal(norm(hidden_states=inputs), norm(inputs))
        assert list(inspect.signature(layer.mlp.forward).parameters) == names
