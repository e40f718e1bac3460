"""From our recipe to llm-compressor's modifiers."""

import re
from collections.abc import Callable
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.autoround import AutoRoundModifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from pydantic import ValidationError

from conf.errors import bad_input
from conf.schema.recipe import HEAD_FORMATS, NumberFormat, RecipeConfig

HEAD = "re:.*lm_head$"
BODY = "re:.*layers\\..*_proj$"  # linear layers but the head, where the head has its own format
MASK = "2:4"
SPARSITY = 0.5


def modifiers(recipe: RecipeConfig) -> list[Modifier]:
    """The recipe's steps in their order, as llm-compressor runs them."""
    try:
        return [MAKERS[step](recipe) for step in recipe.steps]
    except (ValidationError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise bad_input(f"recipe={recipe.name}: {reason}") from error


def _smoothquant(recipe: RecipeConfig) -> Modifier:
    return SmoothQuantModifier(smoothing_strength=recipe.smoothquant.smoothing_strength)


def _awq(recipe: RecipeConfig) -> Modifier:
    return AWQModifier(n_grid=recipe.awq.grid, duo_scaling=recipe.awq.duo_scaling)


def _sparsegpt(recipe: RecipeConfig) -> Modifier:
    return SparseGPTModifier(
        sparsity=SPARSITY,
        mask_structure=MASK,
        block_size=recipe.sparsegpt.block_size,
        dampening_frac=recipe.sparsegpt.dampening,
        targets=recipe.targets,
        ignore=[variant for pattern in recipe.ignore for variant in with_dot(pattern)],
    )


def with_dot(pattern: str) -> list[str]:
    """SparseGPT puts a dot behind each name before it compares, so that `lm_head` would match
    nothing and be pruned, and with it a tied embedding."""
    if pattern.startswith("re:"):
        return (
            [pattern, pattern.removesuffix("$") + r"\.?$"] if pattern.endswith("$") else [pattern]
        )
    return [pattern, f"re:{re.escape(pattern)}\\.?$"]


def _gptq(recipe: RecipeConfig) -> Modifier:
    return GPTQModifier(
        block_size=recipe.gptq.block_size,
        dampening_frac=recipe.gptq.dampening,
        actorder="static" if recipe.gptq.act_order else None,
        **formats(recipe),
    )


def _autoround(recipe: RecipeConfig) -> Modifier:
    return AutoRoundModifier(
        iters=recipe.autoround.iterations, enable_torch_compile=False, **formats(recipe)
    )


def _rounding(recipe: RecipeConfig) -> Modifier:
    return QuantizationModifier(**formats(recipe))


MAKERS: dict[str, Callable[[RecipeConfig], Modifier]] = {
    "smoothquant": _smoothquant,
    "awq": _awq,
    "sparsegpt": _sparsegpt,
    "gptq": _gptq,
    "autoround": _autoround,
    "rounding": _rounding,
}


def formats(recipe: RecipeConfig) -> dict[str, Any]:
    """What is stored how: the fields of compressed-tensors' config, which modifiers take too."""
    assert recipe.weights is not None
    groups = {
        "group_0": QuantizationScheme(
            targets=recipe.targets,
            weights=quantization_args(recipe.weights),
            input_activations=quantization_args(recipe.activations) if recipe.activations else None,
        )
    }
    ignore = list(recipe.ignore)
    if recipe.lm_head:
        head = quantization_args(HEAD_FORMATS[recipe.lm_head])
        groups["lm_head"] = QuantizationScheme(targets=[HEAD], weights=head)
        ignore = [pattern for pattern in ignore if pattern != "lm_head"]
        groups["group_0"].targets = [BODY if name == "Linear" else name for name in recipe.targets]
    formats: dict[str, Any] = {"config_groups": groups, "ignore": ignore}
    if recipe.kv_cache:
        formats["kv_cache_scheme"] = quantization_args(
            NumberFormat(type="float", bits=8, strategy="tensor")
        )
    return formats


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
