"""SparseGPT: prunes to 2:4, two zeros in every four weights; the rest compensate."""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.schema.ranges import MASK_WIDTH, Range, range_of, within
from conf.schema.steps import Kind
from quantize.steps.base.step import STAGED_PASSES, Step, solving_step

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.formats.quant_args import QuantArgs
    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.changes import Changes
    from quantize.steps.base.file_fields import ModifierFields

MASK = "2:4"
SPARSITY = 0.5


@dataclass
class SparseGptOptions:
    """Options of SparseGPT."""

    block_size: int = field(default=128, metadata=within(4, 65536))
    """Columns that are updated together; a multiple of 4."""
    dampening: float = field(default=0.01, metadata=within(0, 1))
    """Share of the mean diagonal that is added to the Hessian."""
    joint: bool = False
    """Choose the zeros while GPTQ rounds, in GPTQ's own passes, instead of before."""


class SparseGpt(Step[SparseGptOptions]):
    """Prunes column by column, by the same Hessians as GPTQ."""

    name = "sparsegpt"
    kind = Kind.PRUNES
    options = SparseGptOptions
    passes = STAGED_PASSES
    in_parallel = True
    solves = True
    modifier_name = "SparseGPTModifier"
    reads_inputs = True
    shows_error_as = "sgpt"

    def check_options(self, options: SparseGptOptions) -> None:
        if options.block_size % MASK_WIDTH:
            raise ValueError(
                f"recipe.sparsegpt.block_size={options.block_size}: must be a multiple of "
                "4, the width of a 2:4 mask"
            )

    def check_weights(self, option: str, weights: "QuantArgs", options: SparseGptOptions) -> None:
        if not weights.symmetric:
            raise ValueError(f"{option}: 2:4 zeros survive only symmetric rounding; symmetric=true")
        if weights.type == "float":
            raise ValueError(f"{option}: sparsegpt works only with int weights, or with none")

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier

        options = recipe.options_of(self)
        if options.joint and solving_step(recipe.steps) is None:
            raise ValueError("recipe.sparsegpt.joint=true needs the step gptq")
        return SparseGPTModifier(
            sparsity=SPARSITY,
            mask_structure=MASK,
            block_size=options.block_size,
            dampening_frac=options.dampening,
            targets=recipe.targets,
            ignore=with_dotted_variants(recipe.ignore),
        )

    def runnable(self, modifier: "Modifier") -> "Modifier":
        modifier.ignore = with_dotted_variants(modifier.ignore)
        return modifier

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        from quantize.calibrate.hooks import sparsegpt_solver

        return sparsegpt_solver()

    def joined_step(self, recipe: "RecipeConfig") -> str | None:
        return solving_step(recipe.steps) if recipe.options_of(self).joint else None

    def check_changes(self, changes: "Changes") -> None:
        noted_as = self.joined_step(changes.recipe) or self.shows_error_as
        changes.require_modules(self.name, changes.touched(noted_as), changes.targeted)

    def file_fields(self) -> "type[ModifierFields]":
        from typing import Annotated, Literal

        from pydantic import AfterValidator, BeforeValidator, Field

        from quantize.steps.base.file_fields import (
            ModifierFields,
            Patterns,
            Targets,
            number,
            whole_number,
        )

        block_sizes = range_of(SparseGptOptions, "block_size")
        dampenings = range_of(SparseGptOptions, "dampening")

        class Fields(ModifierFields):
            requires_calibration_data: Literal[True] = True
            sparsity: Annotated[float, BeforeValidator(number(Range(SPARSITY, SPARSITY)))]
            mask_structure: Literal["2:4"]
            sparsity_profile: None = None
            owl_m: None = None
            owl_lmbda: None = None
            sequential_update: bool | None = False
            targets: Targets = Field(["Linear"])
            ignore: Patterns = Field([])
            block_size: Annotated[
                int, BeforeValidator(whole_number(block_sizes)), AfterValidator(_multiple_of_4)
            ] = 128
            dampening_frac: Annotated[float, BeforeValidator(number(dampenings))] = 0.01
            preserve_sparsity_mask: bool = False
            offload_hessians: bool = False

        return Fields


def with_dotted_variants(ignore: list[str]) -> list[str]:
    """Adds patterns that also match a trailing dot. SparseGPT appends a dot to each name, so that
    `lm_head` would match nothing, and the head and a tied embedding would be pruned."""
    return [variant for pattern in ignore for variant in _dotted_variants(pattern)]


def _dotted_variants(pattern: str) -> list[str]:
    if not pattern.startswith("re:"):
        return [pattern, f"re:{re.escape(pattern)}\\.?$"]
    if not pattern.endswith("$"):
        return [pattern]
    return [pattern, pattern.removesuffix("$") + r"\.?$"]


def _multiple_of_4(value: int) -> int:
    if value % MASK_WIDTH:
        raise ValueError("must be a multiple of 4, the width of a 2:4 mask")
    return value


STEP = SparseGpt()
