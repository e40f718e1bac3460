"""SmoothQuant in GPTQ's passes: X'X follows the rescaling of the inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.modifiers.gptq import GPTQModifier
from rich.console import Console
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from conf.schema.recipe import RecipeConfig
from quantize.benchmark.measuring import layer_errors
from quantize.calibrate.batches import batches
from quantize.calibrate.compress import compress
from quantize.calibrate.rescaling import Rescaling, factor_between, probe, round_as_stored
from quantize.models.fetch import fetch
from quantize.models.load import load
from quantize.modifiers import modifiers
from quantize.steps.smoothquant import STEP, SmoothQuant
from tests.conftest import quantize_config

WIDTH = 24
Norm = Callable[[], torch.nn.Module]


class OffsetNorm(LlamaRMSNorm):
    """A norm that multiplies by one more than its weights, as Gemma's does."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        plain = hidden_states * torch.rsqrt(hidden_states.square().mean(-1, keepdim=True) + 1e-6)
        return plain * (1 + self.weight)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaRMSNorm(WIDTH),
        lambda: LlamaRMSNorm(WIDTH).bfloat16(),
        lambda: OffsetNorm(WIDTH),
        lambda: torch.nn.LayerNorm(WIDTH),
        lambda: torch.nn.LayerNorm(WIDTH).bfloat16(),
    ],
)
def test_products_follow_what_the_norm_does(make: Norm) -> None:
    """X'X of the inputs before, rescaled, is X'X of the inputs after."""
    generator = torch.Generator().manual_seed(0)
    norm = make()
    norm.weight.data = torch.rand(WIDTH, generator=generator).to(norm.weight) + 0.5
    hidden = torch.randn(64, WIDTH, generator=generator).to(norm.weight)
    inputs, before = norm(hidden).float(), probe(norm)
    scales = torch.rand(WIDTH, generator=generator) * 4 + 0.1
    offset = float(isinstance(norm, OffsetNorm))
    norm.weight.data = ((norm.weight.data + offset) / scales - offset).to(norm.weight)
    if getattr(norm, "bias", None) is not None:
        norm.bias.data = (norm.bias.data / scales).to(norm.weight)
    round_as_stored(norm, torch.bfloat16)
    module = torch.nn.Linear(WIDTH, 2)
    rescaling = Rescaling(torch.bfloat16, {module: factor_between(before, probe(norm))})
    products = inputs.T @ inputs
    rescaling.rescale([module], products)
    changed = norm(hidden).float()
    expected = changed.T @ changed
    size = expected.diagonal().sqrt()
    tolerance = 1e-5 if norm.weight.dtype == torch.float32 else 1e-2
    assert ((products - expected) / size / size[:, None]).abs().max() < tolerance


def test_a_module_that_is_not_rescaled_keeps_its_products() -> None:
    products = torch.eye(3)
    Rescaling(torch.bfloat16).rescale([torch.nn.Linear(3, 3)], products)
    assert torch.equal(products, torch.eye(3))


def quantized(recipe: RecipeConfig, samples: list[list[int]], config: Any) -> Any:
    model, tokenizer = load(fetch(config.model), config.model)
    data = batches(samples, 4)
    outcome = compress(model, tokenizer, recipe, modifiers(recipe), data, None, Console(quiet=True))
    return model, outcome


def test_one_pass_is_as_good_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmoothQuant sees the rounded layers' outputs instead of the original's: the errors agree."""
    config = quantize_config("model=tiny", "recipe=w8a8_smooth_gptq")
    generator = torch.Generator().manual_seed(0)
    vocabulary = config.model.architecture.vocab_size if config.model.architecture else 256
    samples = torch.randint(vocabulary, (16, 64), generator=generator).tolist()
    shared, outcome = quantized(config.recipe, samples, config)
    monkeypatch.setattr(SmoothQuant, "joined_step", lambda *_: None)
    apart, outcome_apart = quantized(config.recipe, samples, config)
    assert list(outcome.layer_seconds) == ["gptq"]
    assert list(outcome_apart.layer_seconds) == ["smoothquant", "gptq"]
    assert outcome.rescaled == outcome_apart.rescaled
    original, _ = load(fetch(config.model), config.model)
    for error, error_apart in layer_errors(original, [shared, apart], samples[:4]):
        assert error == pytest.approx(error_apart, rel=0.05)


@pytest.mark.parametrize(
    ("options", "joined"),
    [
        (["recipe=w8a8_smooth_gptq"], "gptq"),
        (["recipe=w8a8_sparse_smooth_gptq"], "gptq"),
        (["recipe=w8a8_smooth_ptq"], None),
        (
            [
                "recipe=w8a8_smooth_gptq",
                "recipe.activations.dynamic=false",
                "recipe.activations.strategy=tensor",
            ],
            None,
        ),
    ],
)
def test_only_dynamic_scales_and_gptq_share_a_pass(options: list[str], joined: str | None) -> None:
    assert STEP.joined_step(quantize_config(*options).recipe) == joined


class Mapping:
    def __init__(self, layer: torch.nn.Module) -> None:
        self.smooth_layer = layer


class Smoothing:
    """As much of SmoothQuant's modifier as the question needs."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        self.resolved_mappings_ = [Mapping(layer) for layer in layers]


def test_only_norms_are_smoothed_in_a_shared_pass() -> None:
    norm, linear = LlamaRMSNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    gptq = GPTQModifier(scheme="W8A8", targets=["Linear"])
    assert STEP.can_join(Smoothing(norm), gptq)
    assert not STEP.can_join(Smoothing(norm, linear), gptq)


def test_static_scales_have_a_pass_of_their_own_in_a_recipe_file() -> None:
    static = QuantizationArgs(num_bits=8, strategy="tensor", dynamic=False)
    weights = QuantizationArgs(num_bits=8, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=static)
    gptq = GPTQModifier(config_groups={"group_0": scheme})
    assert not STEP.can_join(Smoothing(LlamaRMSNorm(WIDTH)), gptq)
