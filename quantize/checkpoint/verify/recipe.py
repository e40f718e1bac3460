"""The config's schemes against the recipe that was asked for."""

from dataclasses import asdict
from typing import Any

from compressed_tensors.quantization import QuantizationScheme

from conf.schema.recipe import HEAD_FORMATS
from quantize.checkpoint.verify.schemes import plain

FIELDS = (
    ("type", "type"),
    ("bits", "num_bits"),
    ("strategy", "strategy"),
    ("group_size", "group_size"),
    ("block_structure", "block_structure"),
    ("symmetric", "symmetric"),
    ("dynamic", "dynamic"),
)


def recipe_faults(
    recipe: dict[str, Any],
    named: set[str],
    schemes: dict[str, QuantizationScheme],
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
    for name in sorted(set(asked) ^ set(schemes)):
        state = "is not" if name in asked else "is, without being asked for,"
        faults.append(f"{name} {state} quantized")
    for name in sorted(set(asked) & set(schemes)):
        scheme = schemes[name]
        faults += _format_faults(name, "weights", asked[name][0], scheme.weights)
        faults += _format_faults(name, "activations", asked[name][1], scheme.input_activations)
    if bool(recipe.get("kv_cache")) != has_kv_cache:
        state = "is" if has_kv_cache else "is not"
        faults.append(f"the KV cache {state} quantized, the recipe has {recipe.get('kv_cache')}")
    return faults


def _format_faults(name: str, part: str, asked: Any, found: Any) -> list[str]:
    if (asked is None) != (found is None):
        return [f"{name}: {part} are {'not ' if found is None else ''}quantized"]
    if asked is None:
        return []
    return [
        f"{name}: {part} have {ours} {plain(getattr(found, theirs))}, "
        f"the recipe asks for {asked[ours]}"
        for ours, theirs in FIELDS
        if ours in asked and plain(getattr(found, theirs)) != asked[ours]
    ]
