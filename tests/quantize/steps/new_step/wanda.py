"""A new algorithm for tests: pruning by Wanda. Nothing else of the project knows this file."""

from dataclasses import dataclass, field
from typing import Any

from conf.schema.ranges import Range, within
from conf.schema.steps import Kind
from quantize.steps.base.changes import Changes
from quantize.steps.base.step import Step

CALLS: list[str] = []


@dataclass
class WandaOptions:
    """Options of Wanda."""

    sparsity: float = field(default=0.5, metadata=within(0.25, 0.5))
    """Share of the weights that become zero."""


class Wanda(Step[WandaOptions]):
    """Prunes the weights that matter least to the outputs."""

    name = "wanda"
    kind = Kind.PRUNES
    options = WandaOptions
    passes = 1
    modifier_name = "WandaPruningModifier"

    def modifier(self, recipe: Any) -> Any:
        from llmcompressor.modifiers.pruning.wanda import WandaPruningModifier

        sparsity = recipe.options_of(self).sparsity
        return WandaPruningModifier(sparsity=sparsity, mask_structure="2:4", ignore=["lm_head."])

    def gpu_bytes(self, layer_weights: float, widest: int) -> float:
        return 7 * 2**30

    def check_model(self, model: Any, name: str, modifier: Any, option: str) -> None:
        CALLS.append(f"check_model {option} of {name}")

    def fallbacks(self, modifier: Any) -> list[str]:
        CALLS.append("a layer")
        return []

    def check_changes(self, changes: Changes) -> None:
        CALLS.append(f"check_changes of {len(changes.targeted)} modules")

    def file_fields(self) -> Any:
        from typing import Annotated, Literal

        from pydantic import BeforeValidator

        from quantize.steps.base.file_fields import ModifierFields, Targets, number

        class Fields(ModifierFields):
            sparsity: Annotated[float, BeforeValidator(number(Range(0.5, 0.5)))]
            mask_structure: Literal["2:4"]
            targets: Targets

        return Fields


STEP = Wanda()
