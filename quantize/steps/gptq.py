"""GPTQ: rounds a weight matrix column by column; later columns compensate for the error."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.errors import gate_failed
from conf.schema.ranges import Range, range_of, within
from conf.schema.steps import Kind
from quantize.steps.base.step import STAGED_PASSES, Step, steps_named

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.changes import Changes
    from quantize.steps.base.file_fields import ModifierFields


@dataclass
class GptqOptions:
    """Options of GPTQ."""

    block_size: int = field(default=128, metadata=within(1, 65536))
    """Columns that are updated together, at most 128 on a GPU and 32 on a CPU. The result does not
    depend on it."""
    dampening: float = field(default=0.01, metadata=within(0, 1))
    """Share of the mean diagonal that is added to the Hessian."""
    act_order: bool = True
    """Round the columns that matter most first; the order is not stored, so it costs no speed."""
    max_fallback: float = field(default=0.05, metadata=within(0, 1))
    """Share of modules that may fall back to plain rounding before the run fails."""


class Gptq(Step[GptqOptions]):
    """Calibrates each layer on the output of the layers that are already rounded."""

    name = "gptq"
    kind = Kind.ROUNDS
    options = GptqOptions
    passes = STAGED_PASSES
    in_parallel = True
    solves = True
    mixes_formats = True
    gates = ("max_fallback",)
    modifier_name = "GPTQModifier"
    reads_inputs = True
    shows_error_as = "gptq"

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from llmcompressor.modifiers.gptq import GPTQModifier

        from quantize.steps.base.formats import formats

        options = recipe.options_of(self)
        return GPTQModifier(
            block_size=options.block_size,
            dampening_frac=options.dampening,
            actorder="static" if options.act_order else None,
            **formats(recipe),
        )

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        from quantize.calibrate.hooks import Zeros, ZerosKind, gptq_solver

        pruning = [step for step in steps_named(recipe.steps) if step.kind is Kind.PRUNES]
        kind = ZerosKind.KEPT if pruning else ZerosKind.NONE
        if any(step.joined_step(recipe) for step in pruning):
            kind = ZerosKind.CHOSEN
        return gptq_solver(Zeros(kind, recipe.targets, recipe.ignore))

    def fallbacks(self, modifier: "Modifier") -> list[str]:
        """Modules that GPTQ could only round; the modifier drops the list at its end."""
        return list(modifier._rtn_fallback_module_names)

    def check_changes(self, changes: "Changes") -> None:
        self._check_fallbacks(changes)
        touched = changes.touched(self.shows_error_as)
        changes.require_modules(self.name, touched, changes.quantized)

    def _check_fallbacks(self, changes: "Changes") -> None:
        limit = changes.recipe.options_of(self).max_fallback
        fallbacks, modules = changes.fallbacks, len(changes.errors)
        if len(fallbacks) > limit * modules:
            raise gate_failed(
                f"recipe={changes.recipe.name}: GPTQ could only round {len(fallbacks)} of "
                f"{modules} modules, {fallbacks[0]} the first; raise recipe.gptq.dampening or "
                f"calibration.samples, or allow it with recipe.gptq.max_fallback (now {limit})"
            )

    def file_fields(self) -> "type[ModifierFields]":
        from typing import Annotated, Literal

        from pydantic import BeforeValidator

        from quantize.steps.base.file_fields import RoundingFields, number, whole_number

        block_sizes = range_of(GptqOptions, "block_size")
        dampenings = range_of(GptqOptions, "dampening")
        batch_sizes = Range(1, 65536)

        class Fields(RoundingFields):
            requires_calibration_data: Literal[True] = True
            block_size: Annotated[int, BeforeValidator(whole_number(block_sizes))] = 128
            dampening_frac: Annotated[float, BeforeValidator(number(dampenings))] = 0.01
            actorder: Literal["static", "weight"] | None = None
            batched_quantization: (
                Literal["auto"] | Annotated[int, BeforeValidator(whole_number(batch_sizes))] | None
            ) = "auto"

        return Fields


STEP = Gptq()
