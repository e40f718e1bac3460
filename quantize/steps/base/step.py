"""The interface of an algorithm, which is one step of a recipe."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conf.schema.steps import Kind, Options, StepSchema, known_steps

if TYPE_CHECKING:
    import torch
    from llmcompressor.modifiers import Modifier

    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.changes import Changes
    from quantize.steps.base.file_fields import ModifierFields

BYTES_16_BIT, BYTES_32_BIT = 2, 4
STAGED_PASSES = 1.4
"""Of a step that takes a layer through stages: each module runs once, but for the parts of an MLP
whose inside was not kept, which run twice."""


@dataclass(frozen=True)
class Scaled:
    """A module whose output was scaled, and the modules that hold the scales."""

    name: str
    modules: "list[torch.nn.Module]"


class Step(StepSchema[Options], ABC):
    """One algorithm. A subclass states its schema, makes its modifier, and overrides the defaults
    below where it differs."""

    modifier_name: str
    """The class of llm-compressor that runs it, as recipe files name it; empty for a class of our
    own, which recipe files cannot name."""
    in_one_pass: bool = False
    """Whether the next layer reads this layer's output from before the step, so that one pass
    through a layer is enough. Such a step is resumed only if all its layers are finished:
    outputs before and after it differ in the last bits."""
    joins_with_modifier: bool = False
    """Whether its modifier takes part in the passes of the step that it joins."""
    reads_inputs: bool = False
    """Whether the step reads only the inputs of modules, so that the calibrating pass may end at
    the last of them."""
    in_parallel: bool = False
    """Whether it exchanges what it sums over the text with other processes, so that each of them
    reads only a part of the text."""
    shows_error_as: str = ""
    """The name under which the step records the relative error of a module's output; empty where it
    records none."""

    # ---- its modifier ---------------------------------------------------------------------

    @abstractmethod
    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        """llm-compressor's modifier for our recipe."""

    @abstractmethod
    def file_fields(self) -> "type[ModifierFields]":
        """The fields that the modifier may have in a recipe file of llm-compressor."""

    def options_in(self, modifier: "Modifier") -> Options:
        """The options that a recipe file gives, as far as `check_weights` reads them."""
        return self.options()

    def runnable(self, modifier: "Modifier") -> "Modifier":
        """The modifier of a recipe file, adjusted so that it does what the file says."""
        return modifier

    # ---- what it needs --------------------------------------------------------------------

    def passes_for(self, recipe: "RecipeConfig", samples: int) -> float:
        """Its cost for a recipe and a number of calibration sequences, as a number of forward
        passes over the calibration text."""
        return self.passes

    def distances(self, recipe: "RecipeConfig", layer_weights: float) -> float:
        """Distances between vectors and codebook entries that it compares for one layer."""
        return 0.0

    def gpu_bytes(self, layer_weights: float, widest: int) -> float:
        """GPU memory that solving for one layer takes beside its weights: the widest X'X with its
        factor and copies of both, and working copies of weights. `widest`: columns of the widest
        matrix."""
        return layer_weights * BYTES_32_BIT + widest**2 * BYTES_32_BIT * 4

    def check_model(self, model: Any, name: str, modifier: "Modifier | None", option: str) -> None:
        """Raises if the step cannot work on this architecture. `modifier`: that of a recipe file;
        `option`: the start of the message."""

    def shares_text(self, recipe: "RecipeConfig") -> bool:
        """Whether several processes can run it, each on a part of the text."""
        return self.in_parallel

    # ---- its way through the layers -------------------------------------------------------

    def patches(self, recipe: "RecipeConfig") -> AbstractContextManager[object]:
        """Patches of llm-compressor that are active while the recipe runs."""
        return nullcontext()

    def joined_step(self, recipe: "RecipeConfig") -> str | None:
        """The later step in whose passes this one's work is done, if there is one."""
        return None

    def can_join(self, modifier: "Modifier", later: "Modifier") -> bool:
        """Whether that is possible, once both modifiers know the model. `later`: the modifier of
        the step that it joins."""
        return True

    def fallbacks(self, modifier: "Modifier") -> list[str]:
        """Modules that the modifier could only round; called after each layer."""
        return []

    def scaled(self, modifier: "Modifier") -> list[Scaled]:
        """Modules whose output the modifier scaled; called after the last layer."""
        return []

    # ---- what it did ----------------------------------------------------------------------

    def check_changes(self, changes: "Changes") -> None:
        """Raises if the step did not do what the recipe claims."""


def steps_named(names: Iterable[str]) -> list[Step[Any]]:
    """The steps of these names, in their order."""
    steps = []
    for name in names:
        step = known_steps()[name]
        assert isinstance(step, Step), name
        steps.append(step)
    return steps


def solving_step(names: Iterable[str]) -> str | None:
    """The step among these that rounds by solving for the weights, as GPTQ does."""
    rounding = [step for step in steps_named(names) if step.kind is Kind.ROUNDS and step.solves]
    return rounding[0].name if rounding else None


def step_of_modifier() -> dict[str, Step[Any]]:
    """Every step that a recipe file can name, by the name of its modifier."""
    steps = steps_named(known_steps())
    return {step.modifier_name: step for step in steps if step.modifier_name}
