"""Every step that a recipe claims has done something, to every layer it was meant for."""

from typing import Any

import torch
from compressed_tensors.utils import match_named_modules

from conf.errors import gate_failed
from conf.schema.recipe import RecipeConfig
from quantize.steps.base.changes import Changes, Errors
from quantize.steps.base.step import steps_named


def check_steps(
    model: Any,
    recipe: RecipeConfig,
    scaled: dict[str, list[str]],
    errors: Errors,
    fallbacks: list[str],
) -> None:
    """Raises where a step changed nothing, or left layers out. `scaled`: modules whose output a
    step scaled, by step; `fallbacks`: modules that could only be rounded."""
    quantized = _quantized(model)
    if recipe.rounds and not quantized:
        raise gate_failed(f"recipe={recipe.name}: no module was quantized, not published")
    named = _named(model, recipe)
    for step in steps_named(recipe.steps):
        scaled_by_step = scaled.get(step.name, [])
        step.check_changes(Changes(recipe, quantized, named, scaled_by_step, errors, fallbacks))


def _quantized(model: Any) -> set[str]:
    """Layers whose weights are stored in a recipe's format."""
    schemes = {
        name: getattr(module, "quantization_scheme", None) for name, module in model.named_modules()
    }
    return {name for name, scheme in schemes.items() if scheme is not None and scheme.weights}


def _named(model: Any, recipe: RecipeConfig) -> set[str]:
    matched = match_named_modules(model, recipe.targets, recipe.ignore)
    return {name for name, module in matched if isinstance(module, torch.nn.Linear)}
