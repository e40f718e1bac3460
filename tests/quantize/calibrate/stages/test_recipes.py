"""Recipes that solve for weights go through a model's layers in stages."""

from typing import Any

import pytest
import torch
from rich.console import Console

from quantize.calibrate.batches import batches
from quantize.calibrate.compress import compress
from quantize.calibrate.stages.layer import StagedLayer
from quantize.models.fetch import fetch
from quantize.models.load import load
from quantize.modifiers import modifiers
from quantize.preflight import with_options
from tests.conftest import quantize_config

LAYERS = 2


@pytest.mark.parametrize(
    ("options", "staged_layers"),
    [
        (["recipe=w4a16_gptq"], LAYERS),
        (["recipe=w8a8_smooth_gptq"], LAYERS),
        (["recipe=w8a8_sparse_smooth_gptq"], 2 * LAYERS),
        (["recipe=w8a8_smooth_gptq", "lm_head=int8"], LAYERS - 1),  # the last layer has the head
        (["recipe=w4a16_awq"], 0),
    ],
)
def test_layers_are_calibrated_in_stages(
    options: list[str], staged_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StagedLayer] = []
    calibrate = StagedLayer.calibrate

    def noting(layer: StagedLayer, change: Any) -> None:
        seen.append(layer)
        calibrate(layer, change)

    monkeypatch.setattr(StagedLayer, "calibrate", noting)
    config = quantize_config("model=tiny", *options)
    model, tokenizer = load(fetch(config.model), config.model)
    recipe = with_options(config, model)
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(model.config.vocab_size, (4, 32), generator=generator)
    data = batches(samples.tolist(), 2)
    outcome = compress(model, tokenizer, recipe, modifiers(recipe), data, None, Console(quiet=True))
    assert len(seen) == staged_layers
    linears = 7 * LAYERS + ("lm_head=int8" in options)
    assert len(outcome.errors) == (linears if "gptq" in options[0] else 0)
