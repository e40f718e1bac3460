"""The config's groups against the recipe that was asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.formats.quant_args import DYNAMIC, LOCAL, STATIC, QuantArgs, QuantGroup
from conf.schema.recipe import HEAD_FORMATS

FIELDS = ("type", "bits", "strategy", "group_size", "block_structure", "symmetric", "dynamic")


@dataclass(frozen=True)
class RequestedRecipe:
    """The part of a recipe that decides what a checkpoint holds."""

    steps: list[str]
    weights: QuantArgs | None
    activations: QuantArgs | None
    lm_head: str | None
    kv_cache: str | None
    targets: list[str]
    ignore: list[str]
    is_file: bool
    """A file of llm-compressor's: the recipe claims nothing beside the config itself."""


def requested_recipe(content: Mapping[str, Any]) -> RequestedRecipe:
    """A resolved recipe, as a manifest keeps it."""
    return RequestedRecipe(
        steps=content["steps"],
        weights=_args(content["weights"]),
        activations=_args(content["activations"]),
        lm_head=content["lm_head"],
        kv_cache=content.get("kv_cache"),
        targets=content["targets"],
        ignore=content["ignore"],
        is_file=bool(content.get("file")),
    )


def _args(content: Mapping[str, Any] | None) -> QuantArgs | None:
    if content is None:
        return None
    dynamic = content["dynamic"]
    return QuantArgs(
        content["type"],
        content["bits"],
        content["strategy"],
        content["group_size"],
        content.get("block_structure"),
        content["symmetric"],
        LOCAL if dynamic == LOCAL else DYNAMIC if dynamic else STATIC,
        content.get("scale_type"),
    )


def recipe_faults(
    recipe: RequestedRecipe, named: set[str], groups: dict[str, QuantGroup], has_kv_cache: bool
) -> list[str]:
    """`named`: the modules that the recipe's targets name; `groups`: those that are quantized."""
    if recipe.is_file:
        return []
    wanted: dict[str, tuple[QuantArgs, QuantArgs | None]] = {}
    if recipe.weights is not None:
        wanted = dict.fromkeys(named, (recipe.weights, recipe.activations))
    if recipe.lm_head:
        wanted["lm_head"] = (HEAD_FORMATS[recipe.lm_head].stored, None)
    faults = []
    for name in sorted(set(wanted) ^ set(groups)):
        state = "is not" if name in wanted else "is, without being asked for,"
        faults.append(f"{name} {state} quantized")
    for name in sorted(set(wanted) & set(groups)):
        weights, activations = wanted[name]
        faults += _format_faults(name, "weights", weights, groups[name].weights)
        faults += _format_faults(name, "activations", activations, groups[name].activations)
    if bool(recipe.kv_cache) != has_kv_cache:
        state = "is" if has_kv_cache else "is not"
        faults.append(f"the KV cache {state} quantized, the recipe has {recipe.kv_cache}")
    return faults


def _format_faults(
    name: str, part: str, wanted: QuantArgs | None, stored: QuantArgs | None
) -> list[str]:
    if wanted is None and stored is None:
        return []
    if wanted is None or stored is None:
        return [f"{name}: {part} are {'not ' if stored is None else ''}quantized"]
    return [
        f"{name}: {part} have {field} {getattr(stored, field)}, "
        f"the recipe asks for {getattr(wanted, field)}"
        for field in FIELDS
        if getattr(stored, field) != getattr(wanted, field)
    ]
