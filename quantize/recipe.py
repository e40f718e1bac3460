"""From our recipe to llm-compressor's modifiers."""

from typing import Any

from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from pydantic import ValidationError

from conf.errors import bad_input
from conf.schema import NumberFormat, RecipeConfig


def modifiers(recipe: RecipeConfig) -> list[Modifier]:
    """The recipe's steps in their order, as llm-compressor runs them."""
    makers = {"smoothquant": _smoothquant, "gptq": _gptq, "rounding": _rounding}
    try:
        return [makers[step](recipe) for step in recipe.steps]
    except (ValidationError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise bad_input(f"recipe={recipe.name}: {reason}") from error


def _smoothquant(recipe: RecipeConfig) -> Modifier:
    return SmoothQuantModifier(smoothing_strength=recipe.smoothquant.smoothing_strength)


def _gptq(recipe: RecipeConfig) -> Modifier:
    return GPTQModifier(
        block_size=recipe.gptq.block_size,
        dampening_frac=recipe.gptq.dampening,
        actorder="static" if recipe.gptq.act_order else None,
        **_formats(recipe),
    )


def _rounding(recipe: RecipeConfig) -> Modifier:
    return QuantizationModifier(**_formats(recipe))


def _formats(recipe: RecipeConfig) -> dict[str, Any]:
    scheme = QuantizationScheme(
        targets=recipe.targets,
        weights=_arguments(recipe.weights),
        input_activations=_arguments(recipe.activations) if recipe.activations else None,
    )
    return {"config_groups": {"group_0": scheme}, "ignore": recipe.ignore}


def _arguments(number: NumberFormat) -> QuantizationArgs:
    return QuantizationArgs(
        num_bits=number.bits,
        type=number.type,
        strategy=number.strategy,
        group_size=number.group_size,
        block_structure=number.block_structure,
        symmetric=number.symmetric,
        dynamic=number.dynamic,
    )
