"""AutoRound: learns how to round, layer by layer, by signed gradient descent."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.schema.ranges import Range, range_of, within
from conf.schema.steps import Kind
from quantize.steps.base.step import Step

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.formats.quant_args import QuantArgs
    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.file_fields import ModifierFields


@dataclass
class AutoRoundOptions:
    """Options of AutoRound."""

    iterations: int = field(default=200, metadata=within(1, 100000))
    """Steps of descent for each layer."""


class AutoRound(Step[AutoRoundOptions]):
    """Tunes each layer on the original's activations, not on those of rounded layers. A scale may
    be negative, so that the extra code on the negative side serves the largest weight."""

    name = "autoround"
    kind = Kind.ROUNDS
    options = AutoRoundOptions
    passes = 400
    signs_scales = True
    modifier_name = "AutoRoundModifier"
    in_one_pass = True

    def check_weights(self, option: str, weights: "QuantArgs", options: AutoRoundOptions) -> None:
        if weights.type == "float":
            raise ValueError(
                f"{option}: autoround works only with int weights; use rounding or gptq"
            )

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.autoround import AutoRoundModifier

        from quantize.steps.base.formats import formats

        iterations = recipe.options_of(self).iterations
        return AutoRoundModifier(iters=iterations, enable_torch_compile=False, **formats(recipe))

    def file_fields(self) -> "type[ModifierFields]":
        from typing import Annotated, Literal

        from pydantic import BeforeValidator

        from quantize.steps.base.file_fields import RoundingFields, number, whole_number

        iterations = range_of(AutoRoundOptions, "iterations")
        batch_sizes, rates = Range(1, 65536), Range(0, 1, above_least=True)

        class Fields(RoundingFields):
            requires_calibration_data: Literal[True] = True
            iters: Annotated[int, BeforeValidator(whole_number(iterations))] = 200
            enable_torch_compile: bool = True
            batch_size: Annotated[int, BeforeValidator(whole_number(batch_sizes))] = 8
            lr: Annotated[float, BeforeValidator(number(rates))] | None = None
            device_ids: str | None = None
            disable_opt_rtn: bool = False

        return Fields


STEP = AutoRound()
