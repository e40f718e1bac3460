"""What a step changed in the model, compared with what it should have changed."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conf.errors import gate_failed
from conf.terminal import listed

if TYPE_CHECKING:
    from conf.schema.recipe import RecipeConfig

Errors = dict[str, dict[str, float]]
"""Errors by module, then by the name that the step records them under."""
LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Changes:
    """The changes of one step, which the step itself checks."""

    recipe: "RecipeConfig"
    quantized: set[str]
    """Modules that are stored in the recipe's format; the head has its own format."""
    targeted: set[str]
    """Linear layers that the recipe's patterns match."""
    scaled: list[str]
    """Modules whose output the step scaled."""
    errors: Errors
    fallbacks: list[str]
    """Modules that GPTQ could only round."""

    def touched(self, error_name: str) -> set[str]:
        """Modules that the step changed: those with a recorded error."""
        return {name for name, by_step in self.errors.items() if error_name in by_step}

    def require_modules(self, step: str, touched: set[str], expected: set[str]) -> None:
        """Raises if the step left out a module."""
        if not touched:
            raise gate_failed(f"recipe={self.recipe.name}: {step} changed no module, not published")
        # A recipe file gives each step its own patterns, which are not known here.
        left_out = sorted(name for name in expected - touched if "lm_head" not in name)
        if left_out and not self.recipe.file:
            raise gate_failed(f"recipe={self.recipe.name}: {step} left out {listed(left_out)}")

    def require_layers(self, step: str) -> None:
        """Raises if the step scaled nothing in a quantized layer."""
        recipe = self.recipe.name
        if not self.scaled:
            raise gate_failed(f"recipe={recipe}: {step} found nothing to scale, not published")
        left_out = sorted(_layers(self.quantized) - _layers(self.scaled), key=int)
        if left_out:
            raise gate_failed(f"recipe={recipe}: {step} left out the layers {listed(left_out)}")


def _layers(modules: Collection[str]) -> set[str]:
    """The numbers of the layers that these modules belong to. A second number in a name is an
    expert's."""
    found = (LAYER.search(f".{name}.") for name in modules)
    return {match[1] for match in found if match is not None}
