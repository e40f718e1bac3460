"""Compares the config's groups with the requested recipe."""

from dataclasses import dataclass

from conf.formats.quant_args import (
    DYNAMIC,
    LOCAL,
    STATIC,
    Codebooks,
    QuantArgs,
    QuantGroup,
    vector_args,
)
from conf.schema.recipe import HEAD_FORMATS
from quantize.checkpoint.manifest_parts import ChoiceClaim, NumberClaim, RecipeClaim

FIELDS = (
    "type",
    "bits",
    "strategy",
    "group_size",
    "block_structure",
    "symmetric",
    "dynamic",
    "codebooks",
)
ModuleFormat = tuple[QuantArgs, QuantArgs | None] | None
"""How weights and activations of a module are stored; null for one that is not quantized."""


@dataclass(frozen=True)
class RequestedRecipe:
    """The fields of a recipe that determine what a checkpoint holds."""

    steps: list[str]
    weights: QuantArgs | None
    activations: QuantArgs | None
    lm_head: str | None
    kv_cache: str | None
    targets: list[str]
    ignore: list[str]
    is_file: bool
    """Whether it is an llm-compressor file: such a recipe claims nothing beyond the config."""
    chosen: dict[str, ModuleFormat] | None = None
    """The format of each module, for a recipe that chose one for each; null in it for modules that
    stay as they are."""


def requested_recipe(recipe: RecipeClaim) -> RequestedRecipe:
    """Reads a resolved recipe, as a manifest stores it."""
    return RequestedRecipe(
        steps=recipe.steps,
        weights=_quant_args(recipe.weights),
        activations=_quant_args(recipe.activations),
        lm_head=recipe.lm_head,
        kv_cache=recipe.kv_cache,
        targets=recipe.targets,
        ignore=recipe.ignore,
        is_file=bool(recipe.file),
        chosen=_chosen(recipe.choice),
    )


def _chosen(choice: ChoiceClaim | None) -> dict[str, ModuleFormat] | None:
    if choice is None:
        return None
    chosen: dict[str, ModuleFormat] = {}
    for group in choice.groups:
        weights = _quant_args(group.weights)
        group_format = None if weights is None else (weights, _quant_args(group.activations))
        chosen |= dict.fromkeys(group.modules, group_format)
    return chosen


def _quant_args(number: NumberClaim | None) -> QuantArgs | None:
    if number is None:
        return None
    if number.codebooks is not None:
        books = number.codebooks
        return vector_args(Codebooks(books.vector_length, books.entries, books.residual_entries))
    return QuantArgs(
        number.type,
        number.bits,
        number.strategy,
        number.group_size,
        number.block_structure,
        number.symmetric,
        _scales(number),
        number.scale_type,
    )


def _scales(number: NumberClaim) -> str:
    if number.dynamic == LOCAL or (number.dynamic and number.strategy == "tensor_group"):
        return LOCAL
    return DYNAMIC if number.dynamic else STATIC


def recipe_faults(
    recipe: RequestedRecipe, targeted: set[str], groups: dict[str, QuantGroup], has_kv_cache: bool
) -> list[str]:
    """Differences between the recipe and the config. `targeted`: modules that the recipe's targets
    match; `groups`: the groups of quantized modules, by module."""
    if recipe.is_file:
        return []
    requested: dict[str, tuple[QuantArgs, QuantArgs | None]] = {}
    faults = []
    if recipe.chosen is not None:
        requested = {name: form for name, form in recipe.chosen.items() if form is not None}
        unknown = sorted(set(recipe.chosen) ^ targeted)
        faults += [f"{name}: the choice and the recipe's targets differ" for name in unknown]
    elif recipe.weights is not None:
        requested = dict.fromkeys(targeted, (recipe.weights, recipe.activations))
    if recipe.lm_head:
        requested["lm_head"] = (HEAD_FORMATS[recipe.lm_head].stored, None)
    for name in sorted(set(requested) ^ set(groups)):
        state = (
            "is not quantized"
            if name in requested
            else "is quantized, but the recipe does not ask for it"
        )
        faults.append(f"{name} {state}")
    for name in sorted(set(requested) & set(groups)):
        weights, activations = requested[name]
        faults += _format_faults(name, "weights", weights, groups[name].weights)
        faults += _format_faults(name, "activations", activations, groups[name].activations)
    if bool(recipe.kv_cache) != has_kv_cache:
        wording = "is" if has_kv_cache else "is not"
        faults.append(f"the KV cache {wording} quantized, the recipe has {recipe.kv_cache}")
    return faults


def _format_faults(
    name: str, tensor_kind: str, requested: QuantArgs | None, stored: QuantArgs | None
) -> list[str]:
    if requested is None and stored is None:
        return []
    if requested is None or stored is None:
        return [f"{name}: {tensor_kind} are {'not ' if stored is None else ''}quantized"]
    return [
        f"{name}: {tensor_kind} have {field} {getattr(stored, field)}, "
        f"the recipe asks for {getattr(requested, field)}"
        for field in FIELDS
        if getattr(stored, field) != getattr(requested, field)
    ]
