"""SmoothQuant: moves outliers from activations into weights, where they cost less."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from conf.schema.ranges import range_of, within
from quantize.steps.base.rescaling import RescalingStep
from quantize.steps.base.step import solving_step

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.file_fields import ModifierFields


@dataclass
class SmoothQuantOptions:
    """Options of SmoothQuant."""

    smoothing_strength: float = field(default=0.8, metadata=within(0, 1))
    """0 leaves activations as they are, 1 makes them flat."""


class SmoothQuant(RescalingStep[SmoothQuantOptions]):
    """Rescaling does not change what the model computes, so the first pass through a layer also
    gives the next layer's input."""

    name = "smoothquant"
    options = SmoothQuantOptions
    passes = 1
    in_parallel = True
    undoes: ClassVar = {"awq": "scales the same channels anew"}
    modifier_name = "SmoothQuantModifier"
    in_one_pass = True
    joins_with_modifier = True

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        return SmoothQuantModifier(smoothing_strength=recipe.options_of(self).smoothing_strength)

    def mappings(self, model: Any) -> Any:
        from llmcompressor.modifiers.transform.smoothquant.dynamic_mappings import (
            get_layer_mappings_from_model,
        )

        return get_layer_mappings_from_model(model)

    def resolved(self, modifier: "Modifier") -> Any:
        return modifier.resolved_mappings_

    def joined_step(self, recipe: "RecipeConfig") -> str | None:
        """GPTQ right behind it. Whether its scales allow that in a recipe file, `can_join` sees."""
        following = recipe.steps[recipe.steps.index(self.name) + 1 :]
        is_dynamic = recipe.activations is None or recipe.activations.dynamic is True
        return solving_step(following[:1]) if is_dynamic else None

    def can_join(self, modifier: "Modifier", later: "Modifier") -> bool:
        """What is smoothed has to be a norm, which multiplies each channel alone. Static scales of
        activations are found in the same pass, and have to see smoothed ones."""
        norms = [mapping.smooth_layer for mapping in self.resolved(modifier)]
        inputs = [group.input_activations for group in later.resolved_config.config_groups.values()]
        return all(len(norm.weight.shape) == 1 for norm in norms) and all(
            activations is None or activations.dynamic is True for activations in inputs
        )

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        from quantize.calibrate.hooks import shared_smoothing

        return shared_smoothing()

    def file_fields(self) -> "type[ModifierFields]":
        from typing import Annotated, Literal

        from pydantic import BeforeValidator, Field

        from quantize.steps.base.file_fields import (
            ModifierFields,
            Patterns,
            Strict,
            Targets,
            number,
        )

        strength = range_of(SmoothQuantOptions, "smoothing_strength")

        class Mapping(Strict):
            balance_layers: Targets
            smooth_layer: Targets

        class Fields(ModifierFields):
            requires_calibration_data: Literal[True] = True
            smoothing_strength: Annotated[float, BeforeValidator(number(strength))] = 0.5
            mappings: (
                Annotated[
                    list[Annotated[Mapping, BeforeValidator(_mapping_of_pair)]], Field(min_length=1)
                ]
                | None
            ) = None
            ignore: Patterns | None = None
            num_calibration_steps: None = None
            calibration_function: None = None
            algorithm: Literal["smoothquant", "log_equalization"] = "smoothquant"

        return Fields


def _mapping_of_pair(value: Any) -> Any:
    """[[layers to balance], layer to smooth], as llm-compressor spells a mapping."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("must be [[layers to balance], layer to smooth]")
    return {"balance_layers": value[0], "smooth_layer": value[1]}


STEP = SmoothQuant()
