"""Checks the mappings of SmoothQuant and AWQ: every layer that reads a scaled output is balanced.

Both divide the output of a layer and multiply the weights of the layers that read it. A reader that
a mapping leaves out gets wrong numbers, and no later check would notice.
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
    """A layer whose output is scaled, and the layers that take up the inverse scales."""

    smooth: torch.nn.Module
    layers: list[torch.nn.Module]


@dataclass(frozen=True)
class MappingRules:
    """How a step finds its mappings, and what it requires of those in a recipe file."""

    finder: Finder
    all_finders: list[Finder]
    """The finders of every step: together they know the most layers that can be scaled."""
    skips_other_widths: bool
    """Whether the step skips layers whose widths do not fit."""


def check_mappings(
    rules: MappingRules, model: Any, name: str, file_mappings: Any, option: str
) -> None:
    """Raises if the step would find no layers to balance, or only some. `file_mappings`: those of a
    recipe file, if it has any; `option`: the start of messages."""
    architecture = type(model).__name__
    try:
        mappings = file_mappings or rules.finder(model)
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
    for _, balances in resolved:
        _check_shared_experts(model, balances, option)
    if file_mappings:
        balances = [balance for _, of_mapping in resolved for balance in of_mapping]
        _check_complete(rules, model, balances, option)


def _check_shared_experts(model: Any, balances: list[Balance], option: str) -> None:
    """Raises if a norm is scaled that a shared expert reads too, and the mapping leaves that one
    out, as AWQ's of Qwen2's mixture does."""
    names = {module: name for name, module in model.named_modules()}
    for balance in balances:
        experts = {
            names[layer].partition(".experts.")[0]
            for layer in balance.layers
            if ".experts." in names[layer]
        }
        shared = [name for name in names.values() if name.endswith(".shared_expert")]
        left_out = [name for name in shared if name.rpartition(".")[0] in experts]
        is_norm = balance.smooth.weight.dim() == 1
        if (
            is_norm
            and left_out
            and not any(".shared_expert" in names[each] for each in balance.layers)
        ):
            raise bad_input(
                f"{option}: scales {names[balance.smooth]}, which {left_out[0]} reads too, and "
                "has no mapping for it; use a recipe without that step"
            )


def _balances(model: Any, mapping: Any, option: str) -> list[Balance]:
    """The balances of a mapping, one for each layer of the model."""
    if hasattr(mapping, "smooth_layer"):
        smooth, balance = [mapping.smooth_layer], list(mapping.balance_layers)
    else:
        balance, smooth = tree_leaves(mapping[0]), tree_leaves(mapping[1])
    check_pattern_times(model, f"{option}.mappings", [*smooth, *balance])
    if len(smooth) != 1:
        raise bad_input(f"{option}.mappings: {mapping}: a mapping smooths one layer, not {smooth}")
    try:
        module_sets = list(match_modules_set(model, [*smooth, *balance]))
    except ValueError as error:
        architecture = type(model).__name__
        reason = f"{option}.mappings: {mapping} does not fit {architecture}: {error}"
        raise bad_input(reason) from error
    balances = []
    for smoothed, *balanced in module_sets:
        if len(smoothed) != 1:
            raise bad_input(
                f"{option}.mappings: {smooth[0]} matches {len(smoothed)} layers for one set of "
                f"{balance}; a mapping smooths one layer"
            )
        balances.append(Balance(smoothed[0], tree_leaves(balanced)))
    return balances


def _check_complete(rules: MappingRules, model: Any, balances: list[Balance], option: str) -> None:
    """Raises unless every layer that reads a scaled output is balanced. The library's own mappings
    tell which layers do."""
    names = {module: name for name, module in model.named_modules()}
    known_readers = _known_readers(model, rules.all_finders)
    smoothed: set[torch.nn.Module] = set()
    for balance in balances:
        smooth = names[balance.smooth]
        if balance.smooth in smoothed:
            raise bad_input(f"{option}.mappings: {smooth} is smoothed by two mappings")
        smoothed.add(balance.smooth)
        if known_readers and balance.smooth not in known_readers:
            raise bad_input(f"{option}.mappings: {smooth} is no layer whose output can be scaled")
        readers = known_readers.get(balance.smooth, balance.layers)
        differing = [names[layer] for layer in {*readers} ^ {*balance.layers}]
        if differing:
            expected = listed([names[layer] for layer in readers], LISTED)
            raise bad_input(
                f"{option}.mappings: {smooth} is read by {expected}; the mapping must balance "
                f"these and no other, and differs in {listed(sorted(differing), LISTED)}"
            )
        if not rules.skips_other_widths:
            _check_widths(option, smooth, balance, names)


def _known_readers(
    model: Any, finders: list[Finder]
) -> dict[torch.nn.Module, list[torch.nn.Module]]:
    """The layers that read each layer that llm-compressor itself would smooth."""
    readers: dict[torch.nn.Module, list[torch.nn.Module]] = {}
    for finder in finders:
        try:
            for mapping in finder(model) or []:
                for balance in _balances(model, mapping, ""):
                    readers[balance.smooth] = balance.layers
        except Exception:  # an architecture that it does not know
            continue
    return readers


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
