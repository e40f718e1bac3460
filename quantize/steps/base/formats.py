"""A recipe's number formats as compressed-tensors describes them, for modifiers that round."""

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from conf.formats.quant_args import EXPONENT_SCALES, LOCAL
from conf.formats.served import stated_spelling
from conf.schema.mixed import Choice, MixedRecipe
from conf.schema.number_format import NumberFormat
from conf.schema.recipe import HEAD_FORMATS, RecipeConfig

SCALE_TYPES = {None: None, "fp8": torch.float8_e4m3fn, EXPONENT_SCALES: torch.uint8}
HEAD = "re:.*lm_head$"
BODY = "re:.*layers\\..*_proj$"  # linear layers without the head, if the head has its own format
# Fields of compressed-tensors' config, which modifiers have too.
Formats = dict[str, dict[str, QuantizationScheme] | list[str] | QuantizationArgs]


def formats(recipe: RecipeConfig) -> Formats:
    """The groups of modules, each with its format, as arguments of a modifier."""
    assert recipe.weights is not None
    ignore = list(recipe.ignore)
    if isinstance(recipe, MixedRecipe):
        groups = _mixed_groups(recipe.made_choice)
        ignore += recipe.made_choice.original_modules
    else:
        groups = {"group_0": _scheme(recipe.targets, recipe.weights, recipe.activations)}
    if recipe.lm_head:
        head = quantization_args(HEAD_FORMATS[recipe.lm_head])
        if not isinstance(recipe, MixedRecipe):
            body = [BODY if name == "Linear" else name for name in recipe.targets]
            groups["group_0"].targets = body
        groups["lm_head"] = QuantizationScheme(targets=[HEAD], weights=head)
        ignore = [pattern for pattern in ignore if pattern != "lm_head"]
    fields: Formats = {"config_groups": groups, "ignore": ignore}
    if recipe.kv_cache:
        fields["kv_cache_scheme"] = quantization_args(
            NumberFormat(type="float", bits=8, strategy="tensor")
        )
    return fields


def _mixed_groups(choice: Choice) -> dict[str, QuantizationScheme]:
    """The groups name their modules: vLLM would take the class Linear, in any group, for all
    modules that it merges."""
    quantized = [group for group in choice.groups if group.weights is not None]
    return {
        f"group_{number}": _scheme(group.modules, group.weights, group.activations)
        for number, group in enumerate(quantized)
        if group.weights is not None
    }


def _scheme(
    targets: list[str], weights: NumberFormat, activations: NumberFormat | None
) -> QuantizationScheme:
    return QuantizationScheme(
        targets=targets,
        weights=quantization_args(weights),
        input_activations=quantization_args(activations) if activations else None,
        format=stated_format(weights, activations),
    )


def stated_format(weights: NumberFormat, activations: NumberFormat | None) -> str | None:
    """The `format` of a scheme; None leaves it to compressed-tensors."""
    return stated_spelling(weights.stored, activations.stored if activations else None)


def quantization_args(number: NumberFormat) -> QuantizationArgs:
    """compressed-tensors' description of a number format."""
    scale = SCALE_TYPES[number.scale_type]
    has_local_scales = number.stored.scales == LOCAL
    return QuantizationArgs(
        num_bits=number.bits,
        type=number.type,
        strategy=number.strategy,
        group_size=number.group_size,
        block_structure=number.block_structure,
        symmetric=number.symmetric,
        dynamic=LOCAL if has_local_scales else number.dynamic,
        observer="static_minmax" if has_local_scales else None,
        scale_dtype=scale,
        zp_dtype=scale,
    )
