"""AWQ: scales the channels with large activations, so that rounding harms them less."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conf.schema.ranges import range_of, within
from quantize.steps.base.rescaling import RescalingStep

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.formats.quant_args import QuantArgs
    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.file_fields import ModifierFields


@dataclass
class AwqOptions:
    """Options of AWQ."""

    grid: int = field(default=20, metadata=within(2, 1000))
    """Scales tried for each group of layers."""
    duo_scaling: bool = True
    """Choose scales by weights as well as activations."""


class Awq(RescalingStep[AwqOptions]):
    """Searches for the scales that change a layer's output least after rounding."""

    name = "awq"
    options = AwqOptions
    passes = 24
    needs_rounding = True
    modifier_name = "AWQModifier"
    skips_other_widths = True

    def check_weights(self, option: str, weights: "QuantArgs", options: AwqOptions) -> None:
        if weights.strategy == "tensor" and options.duo_scaling:
            raise ValueError(
                f"{option}: awq with duo_scaling needs a scale for each channel or group, and the "
                "weights' strategy is tensor"
            )

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.transform.awq import AWQModifier

        options = recipe.options_of(self)
        return AWQModifier(n_grid=options.grid, duo_scaling=options.duo_scaling)

    def options_in(self, modifier: "Modifier") -> AwqOptions:
        return AwqOptions(modifier.n_grid, bool(modifier.duo_scaling))

    def mappings(self, model: Any) -> Any:
        from llmcompressor.modifiers.transform.awq.dynamic_mappings import (
            get_layer_mappings_from_model,
        )

        return get_layer_mappings_from_model(model)

    def resolved(self, modifier: "Modifier") -> Any:
        return modifier._resolved_mappings

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        """Disables pinned memory where there is no accelerator; AWQ pins it regardless."""
        import torch
        from compressed_tensors.utils import patch_attr
        from llmcompressor.pipelines.cache import IntermediatesCache

        if torch.accelerator.is_available():
            return nullcontext()
        patch: AbstractContextManager[object] = patch_attr(
            IntermediatesCache, "pin_memory", lambda *_: None
        )
        return patch

    def file_fields(self) -> "type[ModifierFields]":
        from typing import Annotated, Literal

        from pydantic import BeforeValidator, Field

        from quantize.steps.base.file_fields import (
            ModifierFields,
            Pattern,
            Patterns,
            Strict,
            whole_number,
        )

        class Mapping(Strict):
            smooth_layer: Pattern
            balance_layers: Annotated[Patterns, Field(min_length=1)]
            activation_hook_target: str | None = None

        class Fields(ModifierFields):
            requires_calibration_data: Literal[True] = True
            mappings: Annotated[list[Mapping], Field(min_length=1)] | None = None
            offload_device: None = None
            duo_scaling: bool | Literal["both"] = True
            n_grid: Annotated[int, BeforeValidator(whole_number(range_of(AwqOptions, "grid")))] = 20

        return Fields


STEP = Awq()
