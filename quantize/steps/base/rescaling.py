"""The base of SmoothQuant and AWQ: both scale a layer's output and the layers that read it."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from conf.schema.steps import Kind, Options, known_steps
from quantize.steps.base.step import Scaled, Step

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from quantize.steps.base.changes import Changes


class RescalingStep(Step[Options]):
    """A step with mappings from a layer whose output is scaled to the layers that read it."""

    kind = Kind.TRANSFORMS
    skips_other_widths: bool = False
    """Whether the modifier itself skips a mapping whose widths do not fit."""

    @abstractmethod
    def mappings(self, model: Any) -> Any:
        """llm-compressor's own mappings for an architecture."""

    @abstractmethod
    def resolved(self, modifier: "Modifier") -> Any:
        """The mappings that a modifier found in the model; it drops them at its end."""

    def check_model(self, model: Any, name: str, modifier: "Modifier | None", option: str) -> None:
        from quantize.steps.base.mappings import Finder, MappingRules, check_mappings

        steps = [step for step in known_steps().values() if isinstance(step, RescalingStep)]
        finders: list[Finder] = [step.mappings for step in steps]
        rules = MappingRules(self.mappings, finders, self.skips_other_widths)
        check_mappings(rules, model, name, getattr(modifier, "mappings", None), option)

    def scaled(self, modifier: "Modifier") -> list[Scaled]:
        return [
            Scaled(mapping.smooth_name, [mapping.smooth_layer, *mapping.balance_layers])
            for mapping in self.resolved(modifier) or []
        ]

    def check_changes(self, changes: "Changes") -> None:
        changes.require_layers(self.name)
