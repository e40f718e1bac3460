"""Chooses a format for each layer: the least damage in a size, or the least size for a recovery."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from conf.errors import bad_input, gate_failed
from conf.schema.mixed import Choice, FormatGroup, LayerFormat, layer_formats
from conf.schema.recipe import RecipeConfig
from quantize.calibrate.batches import Tokens
from quantize.fit import Linears
from quantize.mixed.damage import Measured, Trials
from quantize.mixed.knapsack import Option, Table, fill
from quantize.mixed.measure import Original
from quantize.mixed.merged import MergedLayer, merged_layers

ROUNDS = 8  # at most, of correcting the sum of damages by the measured one


@dataclass(frozen=True)
class TrialText:
    """The calibration text of the trials."""

    judged: list[Tokens]
    """Sequences on which predictions are compared."""
    calibrated: list[torch.Tensor]
    """Batches whose inputs layers are rounded for; with other text than is judged."""


def choose(
    recipe: RecipeConfig, model: Any, modules: Linears, text: TrialText, measured: Measured
) -> Choice:
    """The formats of all modules, by what the model loses on the text."""
    layers, formats = merged_layers(modules), layer_formats(recipe)
    original = Original(model, text.judged)
    calibrated = [batch.to(model.device) for batch in text.calibrated]
    trials = Trials(recipe, formats, calibrated, original.batches)
    damages = trials.damages(model, layers, measured)
    table = fill(
        [_options(layer, formats, values) for layer, values in zip(layers, damages, strict=True)]
    )
    assert recipe.auto is not None
    if recipe.auto.min_recovery is not None:
        most = -math.log(recipe.auto.min_recovery)
        return _within_divergence(recipe, original, layers, table, most)
    most_bits = recipe.auto.most_bits
    assert most_bits is not None
    indices = table.within_size(most_bits * _weights(layers))
    return _choice(layers, formats, table, indices, original)


def unmeasured_choice(recipe: RecipeConfig, modules: Linears) -> Choice:
    """A choice of the same size without weights to measure, where every weight counts the same."""
    assert recipe.auto is not None
    if recipe.auto.most_bits is None:
        raise bad_input(
            f"recipe={recipe.name}: recipe.auto.min_recovery needs trained weights; use "
            "recipe.auto.bits"
        )
    layers, formats = merged_layers(modules), layer_formats(recipe)
    options = [
        [
            Option(layer.bits(form), layer.weights * 4.0 ** -(layer.bits(form) / layer.weights))
            for form in formats
        ]
        for layer in layers
    ]
    table = fill(options)
    indices = table.within_size(recipe.auto.most_bits * _weights(layers))
    return _choice(layers, formats, table, indices, None)


def _options(layer: MergedLayer, formats: list[LayerFormat], damages: list[float]) -> list[Option]:
    """The size and damage of a layer in each format."""
    if not (damages[0] > 0 and math.isfinite(sum(damages))):
        raise gate_failed(f"{layer.name}: its loss cannot be measured, divergence {damages[0]:.3g}")
    return [Option(layer.bits(form), damage) for form, damage in zip(formats, damages, strict=True)]


def _within_divergence(
    recipe: RecipeConfig, original: Original, layers: list[MergedLayer], table: Table, most: float
) -> Choice:
    """The smallest choice whose measured divergence is at most this. The sum of the layers' own
    damages differs from it, so the limit of the sum is corrected by what is measured."""
    formats = layer_formats(recipe)
    limit, kept = most, None
    lowest, highest = 0.0, math.inf  # a limit that is kept, and one that is not
    for _ in range(ROUNDS):
        try:
            indices = table.within_damage(limit)
        except ValueError:
            break
        choice = _choice(layers, formats, table, indices, original)
        assert choice.divergence is not None
        if choice.divergence > most:
            highest = limit
        else:
            lowest = limit
            kept = choice if kept is None or choice.bits < kept.bits else kept
            if choice.divergence <= 0 or choice.divergence > 0.95 * most:
                break
        limit *= most / choice.divergence
        if not lowest < limit < highest:
            limit = (lowest + highest) / 2
    if kept is None or not any(group.weights for group in kept.groups):
        raise gate_failed(
            f"min_recovery={math.exp(-most):g}: no choice of recipe={recipe.name} is predicted to "
            "keep it; lower it, or allow other formats with recipe.auto.formats"
        )
    return kept


def _choice(
    layers: list[MergedLayer],
    formats: list[LayerFormat],
    table: Table,
    indices: list[int],
    original: Original | None,
) -> Choice:
    chosen = [formats[index] for index in indices]
    options = [layer[index] for layer, index in zip(table.options, indices, strict=True)]
    divergence = None
    if original is not None:
        divergence = original.divergence(
            {
                module: layer_format
                for layer, layer_format in zip(layers, chosen, strict=True)
                for module in layer.modules.values()
            }
        )
    return Choice(
        _groups(layers, formats, indices),
        bits=sum(option.size for option in options) / _weights(layers),
        summed_divergence=sum(option.damage for option in options) if original else 0.0,
        divergence=divergence,
        recovery=None if divergence is None else math.exp(-divergence),
    )


def _groups(
    layers: list[MergedLayer], formats: list[LayerFormat], indices: list[int]
) -> list[FormatGroup]:
    """The modules of each format that is used."""
    groups = []
    for number, form in enumerate(formats):
        members = [
            name
            for layer, index in zip(layers, indices, strict=True)
            if index == number
            for name in layer.modules
        ]
        if members:
            groups.append(FormatGroup(form.name, form.weights, form.activations, members))
    return groups


def _weights(layers: Iterable[MergedLayer]) -> int:
    return sum(layer.weights for layer in layers)
