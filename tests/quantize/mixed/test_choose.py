"""The damage of layers, measured on a trained model, and what is chosen by it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier

from conf.errors import QuantlineError
from conf.schema.mixed import Choice, LayerFormat, layer_formats
from conf.schema.model import ModelConfig
from conf.schema.recipe import RecipeConfig
from quantize.calibrate.batches import Tokens
from quantize.checkpoint.reload import mean_divergence
from quantize.fit import Linears, check_fit
from quantize.mixed.choose import TrialText, choose, unmeasured_choice
from quantize.mixed.damage import Measured, Trials
from quantize.mixed.gradients import gradients_of
from quantize.mixed.measure import Original
from quantize.mixed.merged import merged_layers, parts_in_memory
from quantize.mixed.rounding import round_weight
from quantize.models.float32 import convert_to_float32
from quantize.models.load import load
from quantize.steps.base.formats import formats, quantization_args
from tests.conftest import quantize_config

SAMPLES: list[Tokens] = [list(range(start, start + 32)) for start in (20, 60, 100)]
# More tokens than any layer has columns.
CALIBRATED = torch.randint(0, 500, (4, 8, 64), generator=torch.Generator().manual_seed(0))
TEXT = TrialText(SAMPLES, list(CALIBRATED))


@pytest.fixture
def model(tiny: tuple[ModelConfig, Path]) -> Any:
    """In 32 bits, also where the CPU has bf16 units: the damage of INT8 is below their rounding."""
    config, folder = tiny
    loaded, _ = load(folder, config)
    convert_to_float32(loaded)
    return loaded


def recipe(**limits: float) -> RecipeConfig:
    auto_recipe = quantize_config("recipe=auto", "model=tiny").recipe
    assert auto_recipe.auto is not None
    return replace(auto_recipe, auto=replace(auto_recipe.auto, **limits))


def in_steps(*steps: str) -> RecipeConfig:
    return replace(recipe(), steps=[*steps])


def modules(model: Any) -> Linears:
    return check_fit(model, recipe(), "tiny")


def chosen(model: Any, **limits: float) -> Choice:
    return choose(recipe(**limits), model, modules(model), TEXT, lambda *_: None)


def damages_of(
    model: Any, tried: RecipeConfig, measured: Measured = lambda *_: None
) -> list[list[float]]:
    trials = Trials(tried, layer_formats(tried), TEXT.calibrated, [torch.tensor(SAMPLES)])
    return trials.damages(model, merged_layers(modules(model)), measured)


def base_formats(model: Any) -> dict[torch.nn.Linear, LayerFormat]:
    return dict.fromkeys(modules(model).values(), layer_formats(recipe())[0])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        answer: torch.Tensor = model(torch.tensor(SAMPLES)).logits
    return answer


def test_divergence_is_that_of_rounding_by_llm_compressor(model: Any) -> None:
    ours, before = Original(model, SAMPLES).divergence(base_formats(model)), logits(model)
    oneshot(model=model, recipe=QuantizationModifier(**formats(replace(recipe(), auto=None))))
    assert ours == pytest.approx(mean_divergence(before, logits(model)), rel=1e-3)


def test_the_estimated_damage_is_the_measured_divergence(model: Any) -> None:
    """Of plain rounding, each layer alone, on the same text: to a factor of two, because the test
    model is trained anew on each machine."""
    original, base = Original(model, SAMPLES), base_formats(model)
    alone = [
        original.divergence({module: base[module] for module in layer.modules.values()})
        for layer in merged_layers(modules(model))
    ]
    estimated = [damages[0] for damages in damages_of(model, in_steps("rounding"))]
    assert 0.5 < sum(estimated) / sum(alone) < 2
    assert original.divergence({}) == pytest.approx(0, abs=1e-6)


def test_finer_formats_lose_less(model: Any) -> None:
    for damages in damages_of(model, recipe()):
        assert damages == sorted(damages, reverse=True)
        assert damages[-1] == 0
    fp8 = quantize_config("recipe=auto_fp8", "model=tiny").recipe
    by_tokens, by_weights = damages_of(model, fp8), damages_of(model, recipe())
    assert by_tokens[0][0] > by_weights[0][0]  # the activations are rounded, too


def test_a_layer_is_tried_as_the_recipe_rounds_it(model: Any) -> None:
    """On the text that layers are rounded for, GPTQ compensates a part of the error."""
    solved, rounded = (
        Trials(tried, layer_formats(tried), TEXT.calibrated, TEXT.calibrated).damages(
            model, merged_layers(modules(model)), lambda *_: None
        )
        for tried in (in_steps("gptq"), in_steps("rounding"))
    )
    assert sum(damages[0] for damages in solved) < 0.8 * sum(damages[0] for damages in rounded)


def test_parts_of_a_model_are_tried_like_the_whole(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, counts = damages_of(model, recipe()), []
    monkeypatch.setattr("quantize.mixed.merged.PART_BYTES", 1)
    layers = merged_layers(modules(model))
    assert len(list(parts_in_memory(layers, tokens=1))) == len(layers)
    assert damages_of(model, recipe(), lambda *count: counts.append(count)) == whole
    assert counts == [(number, len(layers)) for number in range(1, len(layers) + 1)]


def test_gradients_leave_the_model_as_it_was(model: Any) -> None:
    last = model.model.layers[-1].mlp.down_proj
    gradients = gradients_of(model, [last], [torch.tensor(SAMPLES)])
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    read = gradients.of(last)
    assert read is not None
    assert [tuple(part.shape) for part in read] == [(96, last.in_features), (96, last.out_features)]
    assert gradients.of(torch.nn.Linear(2, 3)) is None  # as of an expert that reads no token


def test_the_weights_are_as_they_were(model: Any) -> None:
    before = logits(model)
    chosen(model, bits=5)
    assert torch.equal(logits(model), before)


def test_the_size_is_kept_and_merged_modules_share_a_format(model: Any) -> None:
    choice = chosen(model, bits=5)
    assert 4.125 < choice.bits <= 5
    format_of = choice.format_of()
    assert set(format_of) == set(modules(model))
    for layer in merged_layers(modules(model)):
        assert len({format_of[name].name for name in layer.modules}) == 1
    assert choice.divergence is not None
    assert choice.divergence > choice.summed_divergence  # GPTQ loses less than plain rounding
    assert choice.recovery == pytest.approx(math.exp(-(choice.divergence or 0)))


def test_more_bits_lose_less(model: Any) -> None:
    divergences = [chosen(model, bits=bits).summed_divergence for bits in (4.2, 5, 8)]
    assert divergences == sorted(divergences, reverse=True)


def test_a_fragile_layer_gets_more_bits(model: Any) -> None:
    """One outlier in each group spoils the scale of all other weights."""
    fragile = model.model.layers[1].mlp.down_proj
    fragile.weight.data[:, ::128] *= 30
    choice = chosen(model, bits=5)
    weights = choice.format_of()["model.layers.1.mlp.down_proj"].weights
    assert weights is None or weights.bits == 8


def test_a_recovery_is_kept_with_few_bits(model: Any) -> None:
    most = chosen(model, bits=4.13).divergence
    assert most is not None
    limit = math.exp(-most / 3)
    choice = chosen(model, min_recovery=limit)
    assert choice.recovery is not None
    assert choice.recovery >= limit
    assert choice.bits < 8


def test_a_recovery_that_no_format_keeps_fails(model: Any) -> None:
    coarse = replace(recipe(), auto=replace(recipe().auto, formats=["w4a16_g32"]))
    strict = replace(coarse, auto=replace(coarse.auto, min_recovery=0.9999))
    with pytest.raises(QuantlineError, match=r"min_recovery=0.9999: no choice of recipe=auto"):
        choose(strict, model, modules(model), TEXT, lambda *_: None)


def test_without_weights_only_a_size_can_be_kept(model: Any) -> None:
    choice = unmeasured_choice(recipe(bits=6), modules(model))
    assert 5 < choice.bits <= 6
    assert choice.divergence is None
    with pytest.raises(QuantlineError, match="min_recovery needs trained weights"):
        unmeasured_choice(recipe(min_recovery=0.99), modules(model))


def test_rounding_is_the_formats_own(model: Any) -> None:
    weight = model.model.layers[0].mlp.up_proj.weight
    args = quantization_args(recipe().weights)  # type: ignore[arg-type]
    rounded = round_weight(weight, args)
    groups = rounded.reshape(len(weight), -1, 128)
    assert max(len(values.unique()) for row in groups for values in row) <= 16
