"""AWQ: scales the channels with large activations, so that rounding harms them less."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conf.schema.ranges import choices, range_of, within
from quantize.steps.base.rescaling import RescalingStep
from quantize.steps.base.step import BYTES_16_BIT, BYTES_32_BIT

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.formats.quant_args import QuantArgs
    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.file_fields import ModifierFields

GRAM, LIBRARY = "gram", "llmcompressor"
SEARCHES = (GRAM, LIBRARY)
CLIPPED_STRATEGIES = ("group", "tensor_group", "channel")
SEARCH_SEQUENCES = 16  # that run through attention or an MLP for each scale that is tried


@dataclass
class AwqOptions:
    """Options of AWQ."""

    grid: int = field(default=20, metadata=within(4, 1000))
    """Scales tried for each group of layers."""
    duo_scaling: bool = True
    """Choose scales by weights as well as activations."""
    search: str = field(default=GRAM, metadata=choices(*SEARCHES))
    """gram: a fast search that keeps few activations; llmcompressor: its own, which keeps all."""
    clip: bool = False
    """Clamp the largest weights of each group after scaling, where that lowers the error."""


class Awq(RescalingStep[AwqOptions]):
    """Searches for the scales that change a layer's output least after rounding."""

    name = "awq"
    options = AwqOptions
    passes = 3
    needs_rounding = True
    modifier_name = "AWQModifier"
    in_one_pass = True
    in_parallel = True
    skips_other_widths = True
    options_beside_file = ("search",)

    def check_options(self, options: AwqOptions) -> None:
        if options.clip and options.search != GRAM:
            raise ValueError(
                f"recipe.awq.clip=true: works only with recipe.awq.search={GRAM}, not with "
                f"{options.search}"
            )

    def check_weights(self, option: str, weights: "QuantArgs", options: AwqOptions) -> None:
        if weights.strategy == "tensor" and options.duo_scaling:
            raise ValueError(
                f"{option}: awq with duo_scaling needs a scale for each channel or group, and the "
                "weights' strategy is tensor"
            )
        if options.clip and weights.strategy not in CLIPPED_STRATEGIES:
            raise ValueError(
                f"{option}: awq.clip needs a scale for each channel or group, and the weights' "
                f"strategy is {weights.strategy}"
            )

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.transform.awq import AWQModifier

        options = recipe.options_of(self)
        return AWQModifier(
            n_grid=options.grid,
            duo_scaling=options.duo_scaling,
            offload_device=None,  # a mixture's would be a device, which recipe.yaml cannot hold
        )

    def options_in(self, modifier: "Modifier") -> AwqOptions:
        return AwqOptions(modifier.n_grid, bool(modifier.duo_scaling))

    def mappings(self, model: Any) -> Any:
        from llmcompressor.modifiers.transform.awq.dynamic_mappings import (
            get_layer_mappings_from_model,
        )

        from quantize.calibrate.awq.mappings import own_mappings

        with own_mappings():
            return get_layer_mappings_from_model(model)

    def resolved(self, modifier: "Modifier") -> Any:
        return modifier._resolved_mappings

    def passes_for(self, recipe: "RecipeConfig", samples: int) -> float:
        """One pass, and a run with each scale: over a few sequences, or over all of them. X'X of
        the widest layer costs half a pass, and rounding for a scale a sixteenth; clipping needs X'X
        of the other layers, too."""
        options = recipe.options_of(self)
        if options.search == LIBRARY:
            return 1 + options.grid + 1
        share = SEARCH_SEQUENCES / max(SEARCH_SEQUENCES, samples)
        return 1.5 + 0.5 * options.clip + (options.grid + 1) * share + options.grid / 16

    def shares_text(self, recipe: "RecipeConfig") -> bool:
        return recipe.options_of(self).search == GRAM

    def gpu_bytes(self, layer_weights: float, widest: int) -> float:
        """Copies of the layer's weights in 16 and 32 bits; X'X of the widest layer as strips and as
        a matrix."""
        return layer_weights * (BYTES_16_BIT * 3 + BYTES_32_BIT) + widest**2 * BYTES_32_BIT * 2

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        from quantize.calibrate.awq.search import gram_search, library_search

        options = recipe.options_of(self)
        if options.search == LIBRARY:
            return library_search()
        return gram_search(SEARCH_SEQUENCES, options.clip)

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
