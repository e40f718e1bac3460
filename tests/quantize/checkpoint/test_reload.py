"""What two models must share to be the same: next tokens and scales of activations."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
    preset_name_to_scheme,
)
from transformers import AutoModelForCausalLM

from quantize.checkpoint.reload import (
    Probe,
    differing_scales,
    mean_divergence,
    probe,
)
from tests.quantize.models.mutations import micro


def test_a_divergence_is_never_negative_and_hides_no_nan() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 50, generator=generator)
    shifts = [torch.full_like(logits, shift) for shift in (0.0, 0.1, 3.0, 17.0)]
    found = [mean_divergence(logits, logits + shift) for shift in shifts]
    assert min(found) >= 0
    assert max(found) < 1e-6
    logits[3, 4] = torch.nan
    assert math.isnan(mean_divergence(logits, logits))


def rounding_activations(folder: Path, preset: str) -> Any:
    """A small model that rounds the inputs of its layers, and not their weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    known = preset_name_to_scheme(preset, ["Linear"])
    scheme = QuantizationScheme(targets=["Linear"], input_activations=known.input_activations)
    groups = QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, groups)
    for module in model.modules():
        if hasattr(module, "input_global_scale"):
            module.input_global_scale.data.fill_(100.0)
    return model


@pytest.mark.parametrize(("preset", "is_rounded"), [("NVFP4", False), ("INT8", True)])
def test_a_probe_rounds_no_activations_of_few_bits(
    preset: str, is_rounded: bool, tmp_path: Path
) -> None:
    folder = micro(tmp_path / "source", "llama")
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = probe(rounding_activations(folder, preset))
    assert torch.equal(found.logits, probe(original).logits) != is_rounded
    assert bool(found.scales) != is_rounded  # what is not rounded is compared by its scales


def test_scales_of_activations_are_compared() -> None:
    logits = torch.zeros(1, 2)
    memory = Probe(logits, {"a.input_global_scale": torch.tensor([100.0])})
    assert differing_scales(memory, memory) == []
    nearly = replace(memory, scales={"a.input_global_scale": torch.tensor([100.2])})
    assert differing_scales(memory, nearly) == []
    for other in (torch.tensor([50.0]), torch.tensor([torch.nan]), torch.tensor([100.0, 100.0])):
        wrong = replace(memory, scales={"a.input_global_scale": other})
        assert differing_scales(memory, wrong) == ["a.input_global_scale"]
    assert differing_scales(memory, Probe(logits, {})) == ["a.input_global_scale"]
    assert differing_scales(Probe(logits, {}), memory) == ["a.input_global_scale"]
