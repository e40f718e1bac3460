"""VPTQ: stores vectors of weights as numbers of codebook entries, column by column as GPTQ does."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.errors import gate_failed
from conf.schema.ranges import within
from conf.schema.steps import Kind
from quantize.steps.base.step import BYTES_32_BIT, STAGED_PASSES, Step

if TYPE_CHECKING:
    from llmcompressor.modifiers import Modifier

    from conf.schema.recipe import RecipeConfig
    from quantize.steps.base.changes import Changes
    from quantize.steps.base.file_fields import ModifierFields

MODULES = 7  # linear layers of a decoder layer
DISTANCES = 1 << 27  # numbers that the search for the nearest entries holds on a GPU


@dataclass
class VptqOptions:
    """Options of VPTQ."""

    rounds: int = field(default=10, metadata=within(1, 1000))
    """Rounds of k-means for each codebook."""
    samples: int = field(default=64, metadata=within(1, 65536))
    """Vectors for each codebook entry that k-means looks at."""
    dampening: float = field(default=0.01, metadata=within(0, 1))
    """Share of the mean diagonal that is added to the Hessian."""
    act_order: bool = True
    """Round the columns that matter most first; the order is not stored, so it costs no speed."""
    max_fallback: float = field(default=0.05, metadata=within(0, 1))
    """Share of modules whose columns may stay uncompensated before the run fails."""


class Vptq(Step[VptqOptions]):
    """Calibrates each layer on the output of the layers that are already stored in codebooks."""

    name = "vptq"
    kind = Kind.ROUNDS
    options = VptqOptions
    passes = STAGED_PASSES
    in_parallel = True
    solves = True
    number_types = ("vector",)
    gates = ("max_fallback",)
    modifier_name = ""
    reads_inputs = True
    shows_error_as = "vptq"

    def modifier(self, recipe: "RecipeConfig") -> "Modifier":
        from quantize.calibrate.vectors.modifier import VectorModifier
        from quantize.calibrate.vectors.solve import Settings

        options = recipe.options_of(self)
        assert recipe.weights is not None
        assert recipe.weights.codebooks is not None
        return VectorModifier(
            codebooks=recipe.weights.codebooks.stored,
            settings=Settings(
                options.rounds, options.samples, options.dampening, options.act_order
            ),
            targets=recipe.targets,
            ignore=recipe.ignore,
        )

    def distances(self, recipe: "RecipeConfig", layer_weights: float) -> float:
        """Every vector is compared once when it is stored, and in each round of a k-means that
        looks at it. Of small layers k-means looks at all vectors."""
        assert recipe.weights is not None
        assert recipe.weights.codebooks is not None
        options, books = recipe.options_of(self), recipe.weights.codebooks
        vectors = layer_weights / books.vector_length
        seen = min(vectors, MODULES * options.samples * books.entries)
        return (vectors + options.rounds * seen) * (books.entries + books.residual_entries)

    def gpu_bytes(self, layer_weights: float, widest: int) -> float:
        return super().gpu_bytes(layer_weights, widest) + DISTANCES * BYTES_32_BIT

    def fallbacks(self, modifier: "Modifier") -> list[str]:
        names: list[str] = modifier.fallbacks
        return names

    def check_changes(self, changes: "Changes") -> None:
        limit = changes.recipe.options_of(self).max_fallback
        fallbacks, modules = changes.fallbacks, len(changes.errors)
        if len(fallbacks) > limit * modules:
            raise gate_failed(
                f"recipe={changes.recipe.name}: the columns of {len(fallbacks)} of {modules} "
                f"modules could not compensate for errors, {fallbacks[0]} the first; raise "
                "recipe.vptq.dampening or calibration.samples, or allow it with "
                f"recipe.vptq.max_fallback (now {limit})"
            )
        touched = changes.touched(self.shows_error_as)
        changes.require_modules(self.name, touched, changes.quantized)

    def file_fields(self) -> "type[ModifierFields]":
        from quantize.steps.base.file_fields import ModifierFields

        return ModifierFields  # no recipe file can name the modifier


STEP = Vptq()
