"""The config's schemes against the recipe that was asked for."""

from dataclasses import asdict
from typing import Any

from conf.formats.quant_args import QuantArgs, QuantGroup
from conf.schema.recipe import HEAD_FORMATS

FIELDS = ("type", "bits", "strategy", "group_size", "block_structure", "symmetric", "dynamic")


def recipe_faults(
    recipe: dict[str, Any],
    named: set[str],
    groups: dict[str, QuantGroup],
    has_kv_cache: bool,
) -> list[str]:
    """`named`: the modules that the recipe's targets name."""
    if not recipe or recipe.get("file"):
        return []  # a file of llm-compressor's: nothing is claimed beside the config itself
    weights, head = recipe["weights"], recipe["lm_head"]
    asked = dict.fromkeys(named, (weights, recipe["activations"])) if weights else {}
    if head:
        asked["lm_head"] = (asdict(HEAD_FORMATS[head]), None)
    faults = []
    for name in sorted(set(asked) ^ set(groups)):
        state = "is not" if name in asked else "is, without being asked for,"
        faults.append(f"{name} {state} quantized")
    for name in sorted(set(asked) & set(groups)):
        weights, activations = asked[name]
        faults += _format_faults(name, "weights", weights, groups[name].weights)
        faults += _format_faults(name, "activations", activations, groups[name].activations)
    if bool(recipe.get("kv_cache")) != has_kv_cache:
        state = "is" if has_kv_cache else "is not"
        faults.append(f"the KV cache {state} quantized, the recipe has {recipe.get('kv_cache')}")
    return faults


def _format_faults(
    name: str, part: str, wanted: dict[str, Any] | None, stored: QuantArgs | None
) -> list[str]:
    if wanted is None and stored is None:
        return []
    if wanted is None or stored is None:
        return [f"{name}: {part} are {'not ' if stored is None else ''}quantized"]
    return [
        f"{name}: {part} have {field} {getattr(stored, field)}, the recipe asks for {wanted[field]}"
        for field in FIELDS
        if field in wanted and getattr(stored, field) != wanted[field]
    ]
