"""Which layers SmoothQuant and AWQ balance: all that read a scaled output, or the model breaks.

Both divide the output of a layer and multiply the weights of the layers behind it. A layer behind
it that a mapping leaves out reads wrong numbers, and no later check could tell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from compressed_tensors.utils import match_modules_set
from torch.utils._pytree import tree_leaves

from conf.errors import bad_input
from conf.terminal import listed
from quantize.fit import LISTED, check_pattern_times

Finder = Callable[[Any], Any]
"""llm-compressor's mappings for a model."""


@dataclass
class Balance:
    """A layer whose output is scaled, and the layers that make up for it."""

    smooth: torch.nn.Module
    layers: list[torch.nn.Module]


@dataclass(frozen=True)
class MappingRules:
    """How a step finds its mappings, and what it demands of those that a file gives."""

    finder: Finder
    all_finders: list[Finder]
    """Those of every step: together they know the most layers that can be scaled."""
    skips_other_widths: bool
    """Whether the step passes over layers whose widths do not fit."""


def check_mappings(rules: MappingRules, model: Any, name: str, given: Any, option: str) -> None:
    """Raises where the step would find no layers to balance, or only some. `given`: the mappings of
    a recipe file, where it has any; `option`: what messages begin with."""
    architecture = type(model).__name__
    try:
        mappings = given or rules.finder(model)
    except Exception as error:
        raise bad_input(f"{option}: has no mapping for {architecture}: {error}") from error
    resolved = [(mapping, _balances(model, mapping, option)) for mapping in mappings or []]
    if not any(balances for _, balances in resolved):
        raise bad_input(
            f"{option}: knows no layers to balance in {architecture} (model={name}); "
            "use a recipe without that step"
        )
    for mapping, balances in resolved:
        if not balances:
            raise bad_input(f"{option}.mappings: {mapping} matches nothing in {architecture}")
    if given:
        balances = [balance for _, each in resolved for balance in each]
        _check_complete(rules, model, balances, option)


def _balances(model: Any, mapping: Any, option: str) -> list[Balance]:
    """What a mapping balances, layer by layer."""
    if hasattr(mapping, "smooth_layer"):
        smooth, balance = [mapping.smooth_layer], list(mapping.balance_layers)
    else:
        balance, smooth = tree_leaves(mapping[0]), tree_leaves(mapping[1])
    check_pattern_times(model, f"{option}.mappings", [*smooth, *balance])
    if len(smooth) != 1:
        raise bad_input(f"{option}.mappings: {mapping}: a mapping smooths one layer, not {smooth}")
    try:
        sets = list(match_modules_set(model, [*smooth, *balance]))
    except ValueError as error:
        architecture = type(model).__name__
        reason = f"{option}.mappings: {mapping} does not fit {architecture}: {error}"
        raise bad_input(reason) from error
    balances = []
    for smoothed, *balanced in sets:
        if len(smoothed) != 1:
            raise bad_input(
                f"{option}.mappings: {smooth[0]} matches {len(smoothed)} layers for one set of "
                f"{balance}; a mapping smooths one layer"
            )
        balances.append(Balance(smoothed[0], tree_leaves(balanced)))
    return balances


def _check_complete(rules: MappingRules, model: Any, balances: list[Balance], option: str) -> None:
    """Every layer that reads a scaled output is balanced, as the library's own mappings say."""
    names = {module: name for name, module in model.named_modules()}
    known = _known(model, rules.all_finders)
    seen: set[torch.nn.Module] = set()
    for balance in balances:
        smooth = names[balance.smooth]
        if balance.smooth in seen:
            raise bad_input(f"{option}.mappings: {smooth} is smoothed by two mappings")
        seen.add(balance.smooth)
        if known and balance.smooth not in known:
            raise bad_input(f"{option}.mappings: {smooth} is no layer whose output can be scaled")
        behind = known.get(balance.smooth, balance.layers)
        wrong = [names[layer] for layer in {*behind} ^ {*balance.layers}]
        if wrong:
            expected = listed([names[layer] for layer in behind], LISTED)
            raise bad_input(
                f"{option}.mappings: {smooth} is read by {expected}; the mapping must balance "
                f"these and no other, and differs in {listed(sorted(wrong), LISTED)}"
            )
        if not rules.skips_other_widths:
            _check_widths(option, smooth, balance, names)


def _known(model: Any, finders: list[Finder]) -> dict[torch.nn.Module, list[torch.nn.Module]]:
    """The layers behind each layer that llm-compressor itself would smooth."""
    behind: dict[torch.nn.Module, list[torch.nn.Module]] = {}
    for finder in finders:
        try:
            for mapping in finder(model) or []:
                for balance in _balances(model, mapping, ""):
                    behind[balance.smooth] = balance.layers
        except Exception:  # an architecture that it does not know
            continue
    return behind


def _check_widths(
    option: str, smooth: str, balance: Balance, names: dict[torch.nn.Module, str]
) -> None:
    width = balance.smooth.weight.shape[0]
    for layer in balance.layers:
        if layer.weight.shape[-1] != width:
            raise bad_input(
                f"{option}.mappings: {smooth} gives {width} values and {names[layer]} reads "
                f"{layer.weight.shape[-1]}"
            )
