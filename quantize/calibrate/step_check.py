"""Checks that every step of a recipe changed every layer that it targets."""

from typing import Any

import torch
from compressed_tensors.utils import match_named_modules

from conf.errors import gate_failed
from conf.schema.recipe import RecipeConfig
from quantize.steps.base.changes import Changes, Errors
from quantize.steps.base.step import steps_named
from quantize.vptq.attached import is_attached


def check_steps(
    model: Any,
    recipe: RecipeConfig,
    scaled: dict[str, list[str]],
    errors: Errors,
    fallbacks: list[str],
) -> None:
    """Raises if a step changed nothing, or left layers out. `scaled`: modules whose output a step
    scaled, by step; `fallbacks`: modules that GPTQ could only round."""
    quantized = quantized_modules(model)
    if recipe.rounds and not quantized:
        raise gate_failed(f"recipe={recipe.name}: no module was quantized, not published")
    targeted = targeted_linears(model, recipe)
    for step in steps_named(recipe.steps):
        scaled_by_step = scaled.get(step.name, [])
        step.check_changes(Changes(recipe, quantized, targeted, scaled_by_step, errors, fallbacks))


def quantized_modules(model: Any) -> set[str]:
    """Layers whose weights are stored in a recipe's format."""
    schemes = {
        name: getattr(module, "quantization_scheme", None) for name, module in model.named_modules()
    }
    rounded = {name for name, scheme in schemes.items() if scheme is not None and scheme.weights}
    return rounded | {name for name, module in model.named_modules() if is_attached(module)}


def targeted_linears(model: Any, recipe: RecipeConfig) -> set[str]:
    """Names of the linear layers that the recipe's patterns match."""
    matched = match_named_modules(model, recipe.targets, recipe.ignore)
    return {name for name, module in matched if isinstance(module, torch.nn.Linear)}
