"""What is known of a choice of formats before any weight is read: its limit, fit and cost."""

from dataclasses import replace
from typing import Any

from conf.errors import bad_input
from conf.schema.mixed import layer_formats
from conf.schema.recipe import RecipeConfig
from quantize.estimate import LayerShape, Rates, Text
from quantize.fit import Linears, check_fit
from quantize.mixed.measure import BATCH
from quantize.mixed.merged import FLOAT_BYTES, merged_layers, parts_in_memory

TRIAL_TOKENS = 1 << 16  # of the calibration text that layers are rounded for in the trials
# Passes over the sequences on which predictions are compared: the original, its gradients with a
# pass for what is computed again, and the choice.
JUDGING_PASSES = 5
LOGIT_COPIES = 4  # of a batch's predictions: their likelihoods and gradients


def check_layer_formats(model: Any, recipe: RecipeConfig, name: str, modules: Linears) -> None:
    """Raises where a format does not fit a layer, or the limit in bits cannot be kept."""
    for form in layer_formats(recipe)[1:]:
        if form.weights is not None:
            try:
                alone = replace(
                    recipe, weights=form.weights, activations=form.activations, auto=None
                )
            except ValueError as error:
                raise bad_input(f"recipe.auto.formats: {form.name}: {error}") from error
            check_fit(model, alone, name)
    _check_limit(recipe, modules)


def _check_limit(recipe: RecipeConfig, modules: Linears) -> None:
    assert recipe.auto is not None
    most_bits = recipe.auto.most_bits
    if most_bits is None:
        return
    layers = merged_layers(modules)
    weights = sum(layer.weights for layer in layers)
    sizes = [[layer.bits(form) for form in layer_formats(recipe)] for layer in layers]
    smallest, largest = (sum(map(choice, sizes)) / weights for choice in (min, max))
    if most_bits < smallest:
        raise bad_input(
            f"bits={most_bits:g}: the smallest format of recipe={recipe.name} takes {smallest:.3f} "
            "bits a weight, scales included"
        )
    if most_bits >= largest:
        raise bad_input(
            f"bits={most_bits:g}: all layers could have the largest format of "
            f"recipe={recipe.name}, {largest:.3f} bits a weight; ask for fewer bits"
        )


def trial_seconds(
    recipe: RecipeConfig, modules: Linears, weights: int, shape: LayerShape, text: Text, rate: Rates
) -> float:
    """The time of trying all formats on each layer. `weights`: those of the whole model."""
    if recipe.auto is None:
        return 0.0
    tokens = min(text.tokens, TRIAL_TOKENS)
    judged_tokens = _judged_tokens(recipe, text)
    parts = len(list(parts_in_memory(merged_layers(modules), judged_tokens)))
    judged = judged_tokens * JUDGING_PASSES
    passes = 2.0 * weights * (judged + tokens * parts) / rate.passes
    products = shape.squared_widths * tokens / rate.products
    solved = [form for form in layer_formats(recipe) if form.weights is not None]
    return passes + shape.layers * (products + len(solved) * shape.solved / rate.solving)


def trial_bytes(recipe: RecipeConfig, modules: Linears, vocabulary: int, text: Text) -> float:
    """The memory that the trials need beside the model: the original's predictions, and what a
    part of the layers holds, or the predictions of one batch with their gradients."""
    if recipe.auto is None:
        return 0.0
    tokens = _judged_tokens(recipe, text)
    of_parts = [
        sum(layer.trial_bytes(tokens) for layer in part)
        for part in parts_in_memory(merged_layers(modules), tokens)
    ]
    of_token = vocabulary * FLOAT_BYTES
    of_batch = LOGIT_COPIES * min(tokens, BATCH * recipe.auto.length) * of_token
    return tokens * of_token + max(of_batch, *of_parts)


def _judged_tokens(recipe: RecipeConfig, text: Text) -> int:
    assert recipe.auto is not None
    return min(recipe.auto.samples * recipe.auto.length, text.tokens)


def limit_text(recipe: RecipeConfig) -> str:
    """The limit, and between what is chosen."""
    assert recipe.auto is not None
    names = ", ".join(form.name for form in layer_formats(recipe))
    bits, recovery = recipe.auto.most_bits, recipe.auto.min_recovery
    limit = f"at most {bits:g} bits a weight" if bits else f"a predicted recovery of {recovery:g}"
    return f"each layer gets one of {names}: {limit}"
