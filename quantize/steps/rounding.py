"""Rounds weights to the nearest value; needs calibration text only for static scales."""

from typing import TYPE_CHECKING

from conf.formats.quant_args import DYNAMIC, EXPONENT_SCALES
from conf.schema.steps import Kind, NoOptions
from quantize.steps.base.step import Step

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.file_fields import ModifierFields


class Rounding(Step[NoOptions]):
    """Rounds weights, and calibrates static activation scales or a KV cache."""

    name = "rounding"
    kind = Kind.ROUNDS
    options = NoOptions
    passes = 0
    needs_text = False
    in_parallel = True
    mixes_formats = True
    scale_types = (None, "fp8", EXPONENT_SCALES)
    modifier_name = "QuantizationModifier"

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.quantization import QuantizationModifier

        from quantize.steps.base.formats import formats

        return QuantizationModifier(**formats(recipe))

    def passes_for(self, recipe: "RecipeConfig", samples: int) -> float:
        """Static scales need a pass through the text, and one more for the next layer's input."""
        scales = recipe.activations.stored.scales if recipe.activations is not None else DYNAMIC
        has_static_activations = scales != DYNAMIC
        return 2 if has_static_activations or recipe.kv_cache is not None else 0

    def file_fields(self) -> "type[ModifierFields]":
        from quantize.steps.base.file_fields import RoundingFields

        class Fields(RoundingFields):
            requires_calibration_data: bool = False

        return Fields


STEP = Rounding()
