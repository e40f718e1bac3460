"""The typed options of a recipe file. The text under a field is its documentation."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from conf.formats.quant_args import DYNAMIC, VECTOR
from conf.formats.served import refusal
from conf.schema.auto import AutoOptions
from conf.schema.checks import check_plain_name
from conf.schema.number_format import CodebookFormat, NumberFormat
from conf.schema.ranges import Range, choices, documented, not_empty
from conf.schema.steps import (
    Kind,
    Options,
    StepSchema,
    has_options,
    known_steps,
    names_of,
    prunes,
    with_step_options,
)

BEFORE_ROUNDING = names_of(Kind.TRANSFORMS, Kind.PRUNES)
ROUNDERS = names_of(Kind.ROUNDS)
STEPS = (*BEFORE_ROUNDING, *ROUNDERS)
STEPS_TEXT = (
    f"The steps in their order: {', '.join(BEFORE_ROUNDING)}; then {', '.join(ROUNDERS[:-1])} or "
    f"{ROUNDERS[-1]}."
)
HEADS = ("int8", "int4", "fp8")
KV_CACHES = ("fp8",)
GROUP_SIZE = Range(1, 65536)
PATTERN_MOST = 1000  # characters; module names have about fifty


HEAD_FORMATS = {
    "int8": NumberFormat(type="int", bits=8, strategy="channel"),
    "int4": NumberFormat(type="int", bits=4, strategy="group", group_size=128),
    "fp8": NumberFormat(type="float", bits=8, strategy="channel"),
}


@dataclass
@with_step_options
class RecipeConfig:
    """What is done to a model, step by step, and how the result is stored.

    Each step with options has a field of its name too, which `options_of` reads.
    """

    name: str = MISSING
    """Its name in checkpoints and results; by default the file's name."""
    file: str | None = field(default=None, metadata=not_empty())
    """A recipe.yaml of llm-compressor, to be run as it is instead of the steps below."""
    description: str = ""
    """One line: what it is."""
    when: str = ""
    """When to use it."""
    hardware: str = ""
    """What runs it."""
    steps: list[str] = field(
        default_factory=list, metadata=choices(*STEPS) | documented(STEPS_TEXT)
    )
    weights: NumberFormat | None = field(default_factory=NumberFormat)
    """How weights are stored; null leaves them as they are (pruning alone)."""
    activations: NumberFormat | None = None
    """How activations are rounded before a product; null leaves them at 16 bit."""
    lm_head: str | None = field(default=None, metadata=choices(*HEADS))
    """Store the output head too: int8, int4 or fp8; null leaves it as it is."""
    kv_cache: str | None = field(default=None, metadata=choices(*KV_CACHES))
    """fp8: keep calibrated scales for an FP8 KV cache in the checkpoint."""
    targets: list[str] = field(default_factory=lambda: ["Linear"], metadata=not_empty())
    """Module classes or `re:` patterns to quantize."""
    ignore: list[str] = field(default_factory=lambda: ["lm_head"], metadata=not_empty())
    """Modules or `re:` patterns to leave alone."""
    auto: AutoOptions | None = None
    """Set for a recipe that chooses a format for each layer: limit, other formats, text."""

    def __post_init__(self) -> None:
        if self.file:
            path = Path(self.file).expanduser().absolute()
            self.name = path.parent.name if path.stem == "recipe" else path.stem
            check_plain_name("recipe.name", self.name)
            return  # the file's content is checked when it is read
        check_plain_name("recipe.name", self.name)
        check_order("recipe.steps", self.steps, self.weights is not None)
        self._check_formats()
        for name in self.steps:
            step = known_steps()[name]
            step.check_options(self.options_of(step))
        if not self.targets:
            raise ValueError("recipe.targets=[]: name the modules to quantize, as [Linear]")
        if self.auto is not None:
            self._check_auto()
        for option, patterns in (("targets", self.targets), ("ignore", self.ignore)):
            for pattern in patterns:
                check_pattern(f"recipe.{option}", pattern)

    def _check_formats(self) -> None:
        if self.weights is None:
            given = [name for name in ("activations", "lm_head", "kv_cache") if getattr(self, name)]
            if given:
                raise ValueError(
                    f"recipe.{given[0]}: needs a recipe that quantizes weights, not weights: null"
                )
            return
        self.weights.check("recipe.weights")
        if self.activations is not None:
            self.activations.check("recipe.activations")
        activations = self.activations.stored if self.activations else None
        refused = refusal(self.weights.stored, activations)
        if refused is not None:
            value = getattr(getattr(self, refused.part), refused.field)
            shown = str(value).lower() if isinstance(value, bool) else value
            setting = f"recipe.{refused.part}.{refused.field}"
            if isinstance(value, CodebookFormat):
                raise ValueError(f"{setting}: {refused.reason}")
            raise ValueError(f"{setting}={shown}: {refused.reason}")
        for name in self.steps:
            step = known_steps()[name]
            if self.weights.type not in step.number_types:
                types = " or ".join(step.number_types)
                raise ValueError(
                    f"recipe.weights.type={self.weights.type}: {name} works with {types} weights"
                )
            step.check_scale_type("recipe", self.weights.stored)
            step.check_weights("recipe", self.weights.stored, self.options_of(step))
        if self.weights.type == VECTOR and (self.lm_head or self.kv_cache):
            option = "lm_head" if self.lm_head else "kv_cache"
            raise ValueError(
                f"recipe.{option}: a checkpoint with weights in codebooks has no other format"
            )

    def _check_auto(self) -> None:
        """Raises where layers cannot be tried in several formats, or not be rounded to them."""
        is_static = self.activations is not None and self.activations.stored.scales != DYNAMIC
        if self.weights is None or is_static:
            raise ValueError("recipe.auto: needs weights that are quantized, and no static scales")
        for name in self.steps:
            if not known_steps()[name].mixes_formats:
                able = " or ".join(step for step in STEPS if known_steps()[step].mixes_formats)
                raise ValueError(
                    f"recipe.steps: {name} has one format for all layers; auto needs {able}"
                )

    def options_of(self, step: StepSchema[Options]) -> Options:
        """The options that this recipe gives to a step."""
        options = getattr(self, step.name) if has_options(step) else step.options()
        assert isinstance(options, step.options)
        return options

    @property
    def is_sparse(self) -> bool:
        """Whether every pruned matrix has two zeros in each four weights of a row."""
        return prunes(self.steps)

    @property
    def rounds(self) -> bool:
        """Whether weights end up in another number format, and are not pruned alone."""
        return any(step in ROUNDERS for step in self.steps)

    @property
    def needs_text(self) -> bool:
        static = self.activations is not None and self.activations.stored.scales != DYNAMIC
        by_steps = any(known_steps()[name].needs_text for name in self.steps)
        return static or self.kv_cache is not None or self.auto is not None or by_steps


def check_order(option: str, names: list[str], rounds: bool) -> None:
    """Raises where a step would undo an earlier one, or nothing rounds at the end."""
    setting = f"{option}=[{', '.join(names)}]"
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(f"{setting}: {repeated[0]} is named twice")
    if not names:
        raise ValueError(f"{setting}: name at least one step")
    steps = [known_steps()[name] for name in names]
    rounding = [name for name in names if name in ROUNDERS]
    unusable = rounding or any(step.needs_rounding for step in steps)
    if not rounds and (unusable or not prunes(names)):
        raise ValueError(
            f"{setting}: no step rounds; end with one of {', '.join(ROUNDERS)} (weights=null works "
            f"only with {' or '.join(names_of(Kind.PRUNES))})"
        )
    if rounds and (len(rounding) != 1 or rounding != names[-1:]):
        raise ValueError(
            f"{setting}: the last step has to round, and no other ({', '.join(ROUNDERS)}); a step "
            "after rounding undoes it"
        )
    for number, step in enumerate(steps):
        for undone in names[:number]:
            if undone in step.undoes:
                raise ValueError(
                    f"{setting}: {step.name} {step.undoes[undone]} and undoes {undone}; "
                    f"the order is {step.name}, {undone}"
                )


def check_pattern(option: str, pattern: str) -> None:
    """Raises for an invalid module pattern; whether it matches depends on the model."""
    if len(pattern) > PATTERN_MOST:
        raise ValueError(
            f"{option}: the pattern has {len(pattern)} characters; at most {PATTERN_MOST} are valid"
        )
    if not pattern.startswith("re:"):
        return
    try:
        re.compile(pattern.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{option}: '{pattern}' is no regular expression: {error}") from error
    if pattern == "re:":
        raise ValueError(f"{option}: '{pattern}' has no expression after re:")
