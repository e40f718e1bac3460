"""A recipe's number formats as compressed-tensors describes them, for modifiers that round."""

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from conf.formats.served import stated_spelling
from conf.schema.recipe import HEAD_FORMATS, NumberFormat, RecipeConfig

HEAD = "re:.*lm_head$"
BODY = "re:.*layers\\..*_proj$"  # linear layers without the head, if the head has its own format
# Fields of compressed-tensors' config, which modifiers have too.
Formats = dict[str, dict[str, QuantizationScheme] | list[str] | QuantizationArgs]


def formats(recipe: RecipeConfig) -> Formats:
    """The groups of modules, each with its format, as arguments of a modifier."""
    assert recipe.weights is not None
    groups = {
        "group_0": QuantizationScheme(
            targets=recipe.targets,
            weights=quantization_args(recipe.weights),
            input_activations=quantization_args(recipe.activations) if recipe.activations else None,
            format=stated_format(recipe.weights, recipe.activations),
        )
    }
    ignore = list(recipe.ignore)
    if recipe.lm_head:
        head = quantization_args(HEAD_FORMATS[recipe.lm_head])
        groups["lm_head"] = QuantizationScheme(targets=[HEAD], weights=head)
        ignore = [pattern for pattern in ignore if pattern != "lm_head"]
        groups["group_0"].targets = [BODY if name == "Linear" else name for name in recipe.targets]
    fields: Formats = {"config_groups": groups, "ignore": ignore}
    if recipe.kv_cache:
        fields["kv_cache_scheme"] = quantization_args(
            NumberFormat(type="float", bits=8, strategy="tensor")
        )
    return fields


def stated_format(weights: NumberFormat, activations: NumberFormat | None) -> str | None:
    """The `format` of a scheme; None leaves it to compressed-tensors."""
    return stated_spelling(weights.stored, activations.stored if activations else None)


def quantization_args(number: NumberFormat) -> QuantizationArgs:
    """compressed-tensors' description of a number format."""
    scale = torch.float8_e4m3fn if number.scale_type == "fp8" else None
    return QuantizationArgs(
        num_bits=number.bits,
        type=number.type,
        strategy=number.strategy,
        group_size=number.group_size,
        block_structure=number.block_structure,
        symmetric=number.symmetric,
        dynamic=number.dynamic,
        scale_dtype=scale,
        zp_dtype=scale,
    )
