"""Every step that a recipe claims has done something, to every layer it was meant for."""

import re
from typing import Any

import torch
from compressed_tensors.utils import match_named_modules

from conf.errors import gate_failed
from conf.schema.recipe import RecipeConfig
from conf.terminal import listed
from quantize.calibrate.solver import Errors

RESCALING = ("smoothquant", "awq")
# Steps that note each module's error, and so which modules they changed, under these names.
NOTED_AS = {"gptq": "gptq", "sparsegpt": "sgpt"}
LAYER = re.compile(r"\.(\d+)\.")


def check_steps(
    model: Any, recipe: RecipeConfig, smoothed: dict[str, list[str]], errors: Errors
) -> None:
    """Raises where a step changed nothing, or left layers out. `smoothed`: modules whose output
    SmoothQuant or AWQ scaled, by step; `errors`: of each module, by step."""
    quantized = _quantized(model)
    if recipe.rounds and not quantized:
        raise gate_failed(f"recipe={recipe.name}: no module was quantized, none is published")
    expected = {"gptq": quantized, "sparsegpt": _named(model, recipe)}
    for step in recipe.steps:
        if step in RESCALING:
            _check_smoothed(recipe.name, step, smoothed.get(step, []), quantized)
        if step in NOTED_AS:
            touched = {name for name, by_step in errors.items() if NOTED_AS[step] in by_step}
            _check_touched(recipe, step, touched, expected[step])


def _quantized(model: Any) -> set[str]:
    """Layers whose weights are stored in a recipe's format; the head has its own rules."""
    schemes = {
        name: getattr(module, "quantization_scheme", None) for name, module in model.named_modules()
    }
    return {name for name, scheme in schemes.items() if scheme is not None and scheme.weights}


def _named(model: Any, recipe: RecipeConfig) -> set[str]:
    found = match_named_modules(model, recipe.targets, recipe.ignore)
    return {name for name, module in found if isinstance(module, torch.nn.Linear)}


def _check_touched(recipe: RecipeConfig, step: str, touched: set[str], expected: set[str]) -> None:
    if not touched:
        raise gate_failed(f"recipe={recipe.name}: {step} changed no module, none is published")
    # A recipe file gives each step its own patterns, which are not known here.
    left_out = sorted(name for name in expected - touched if "lm_head" not in name)
    if left_out and not recipe.file:
        raise gate_failed(f"recipe={recipe.name}: {step} left out {listed(left_out)}")


def _check_smoothed(recipe: str, step: str, smoothed: list[str], quantized: set[str]) -> None:
    if not smoothed:
        raise gate_failed(f"recipe={recipe}: {step} found nothing to scale, none is published")
    reached = {number for name in smoothed for number in LAYER.findall(f".{name}.")}
    layers = {number for name in quantized for number in LAYER.findall(f".{name}.")}
    left_out = sorted(layers - reached, key=int)
    if left_out:
        raise gate_failed(f"recipe={recipe}: {step} left out the layers {listed(left_out)}")
