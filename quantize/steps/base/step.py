"""The interface of an algorithm: what the run of a recipe asks of each of its steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conf.schema.steps import Options, StepSchema, known_steps

if TYPE_CHECKING:
    import torch
    from llmcompressor.modifiers import Modifier

    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.changes import Changes
    from quantize.steps.base.file_fields import ModifierFields

BYTES_16_BIT, BYTES_32_BIT = 2, 4


@dataclass(frozen=True)
class Scaled:
    """A module whose output was scaled, and the modules that hold the scales."""

    name: str
    modules: "list[torch.nn.Module]"


class Step(StepSchema[Options], ABC):
    """One algorithm. A subclass states its schema, makes its modifier, and overrides what else
    differs from the answers here."""

    modifier_name: str
    """The class of llm-compressor that runs it, as recipe files name it."""
    in_one_pass: bool = False
    """Whether the next layer reads this layer's output from before the step, so that one pass
    through a layer is enough. Such a step is resumed only as a whole: outputs from before and after
    it differ in the last bits."""
    shows_error_as: str = ""
    """The name of its error in the notes, where that is the relative error of a module's output."""

    # ---- its modifier ---------------------------------------------------------------------

    @abstractmethod
    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        """llm-compressor's modifier for our recipe."""

    @abstractmethod
    def file_fields(self) -> "type[ModifierFields]":
        """What may stand under the modifier in a recipe file of llm-compressor."""

    def options_in(self, modifier: "Modifier") -> Options:
        """The options that a recipe file gives, as far as `check_weights` reads them."""
        return self.options()

    def runnable(self, modifier: "Modifier") -> "Modifier":
        """The modifier of a recipe file, changed so that it does what the file says."""
        return modifier

    # ---- what it needs --------------------------------------------------------------------

    def gpu_bytes(self, layer_weights: float, widest: int) -> float:
        """GPU memory for one layer: its weights with copies; the widest Hessian, its inverse and
        copies of both. `widest`: columns of the widest matrix."""
        return layer_weights * BYTES_16_BIT * 4 + widest**2 * BYTES_32_BIT * 5

    def check_model(self, model: Any, name: str, modifier: "Modifier | None", option: str) -> None:
        """Raises where the step cannot work on this architecture. `modifier`: of a recipe file;
        `option`: what the message begins with."""

    # ---- its way through the layers -------------------------------------------------------

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        """What is replaced inside llm-compressor while the recipe runs."""
        return nullcontext()

    def fallbacks(self, modifier: "Modifier") -> list[str]:
        """Modules that the modifier could only round; asked after each layer."""
        return []

    def scaled(self, modifier: "Modifier") -> list[Scaled]:
        """Modules whose output the modifier scaled; asked after the last layer."""
        return []

    # ---- what it did ----------------------------------------------------------------------

    def check_changes(self, changes: "Changes") -> None:
        """Raises where the step did not do what the recipe claims."""


def steps_named(names: Iterable[str]) -> list[Step[Any]]:
    """The algorithms behind these names."""
    steps = []
    for name in names:
        step = known_steps()[name]
        assert isinstance(step, Step), name
        steps.append(step)
    return steps


def step_of_modifier() -> dict[str, Step[Any]]:
    """Every algorithm by the name of its modifier."""
    return {step.modifier_name: step for step in steps_named(known_steps())}
