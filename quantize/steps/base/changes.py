"""What a step changed in the model, beside what it was meant to change."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conf.errors import gate_failed
from conf.terminal import listed

if TYPE_CHECKING:
    from conf.schema.recipe import RecipeConfig

Errors = dict[str, dict[str, float]]
"""Of each module, by the name that the step notes it under."""
LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Changes:
    """What one step did, for the step itself to judge."""

    recipe: "RecipeConfig"
    quantized: set[str]
    """Modules that are stored in the recipe's format; the head has its own rules."""
    named: set[str]
    """Linear layers that the recipe's patterns name."""
    scaled: list[str]
    """Modules whose output the step scaled."""
    errors: Errors
    fallbacks: list[str]
    """Modules that could only be rounded."""

    def touched(self, noted_as: str) -> set[str]:
        """Modules of which the step noted an error: those that it changed."""
        return {name for name, by_step in self.errors.items() if noted_as in by_step}

    def require_modules(self, step: str, touched: set[str], expected: set[str]) -> None:
        """Raises where the step left out a module."""
        if not touched:
            raise gate_failed(f"recipe={self.recipe.name}: {step} changed no module, not published")
        # A recipe file gives each step its own patterns, which are not known here.
        left_out = sorted(name for name in expected - touched if "lm_head" not in name)
        if left_out and not self.recipe.file:
            raise gate_failed(f"recipe={self.recipe.name}: {step} left out {listed(left_out)}")

    def require_layers(self, step: str) -> None:
        """Raises where the step scaled nothing in a layer that is quantized."""
        recipe = self.recipe.name
        if not self.scaled:
            raise gate_failed(f"recipe={recipe}: {step} found nothing to scale, not published")
        left_out = sorted(_layers(self.quantized) - _layers(self.scaled), key=int)
        if left_out:
            raise gate_failed(f"recipe={recipe}: {step} left out the layers {listed(left_out)}")


def _layers(modules: Collection[str]) -> set[str]:
    """The numbers of the layers that these modules stand in."""
    return {number for name in modules for number in LAYER.findall(f".{name}.")}
