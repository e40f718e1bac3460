"""What is known of a choice of formats before any weight is read: its limit, fit and cost."""

from dataclasses import replace
from typing import Any

from conf.errors import bad_input
from conf.schema.mixed import layer_formats
from conf.schema.recipe import RecipeConfig
from quantize.fit import Linears, check_fit
from quantize.mixed.merged import merged_layers

# Of a whole pass for each trial: blocks before the layer are not run, and weights are rounded.
TRIAL_SHARE = 0.7


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


def trial_operations(recipe: RecipeConfig, modules: Linears, weights: int) -> float:
    """Operations of trying each layer alone. `weights`: those of the whole model."""
    if recipe.auto is None:
        return 0.0
    tokens = recipe.auto.samples * recipe.auto.length
    return len(merged_layers(modules)) * 2.0 * weights * tokens * TRIAL_SHARE


def limit_text(recipe: RecipeConfig) -> str:
    """The limit, and between what is chosen."""
    assert recipe.auto is not None
    names = ", ".join(form.name for form in layer_formats(recipe))
    bits, recovery = recipe.auto.most_bits, recipe.auto.min_recovery
    limit = f"at most {bits:g} bits a weight" if bits else f"a predicted recovery of {recovery:g}"
    return f"each layer gets one of {names}: {limit}"
