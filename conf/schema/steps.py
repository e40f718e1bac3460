"""The interface of an algorithm for the schema of recipes, and the search for algorithms.

Each algorithm is one file in quantize/steps. No file in conf names one: the folder is searched, as
Hydra searches for its plugins, so that a new algorithm is just a new file. Every command imports
these files, so their top level imports nothing heavy.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from conf.formats.quant_args import FLOAT, INT, QuantArgs

FOLDER = "quantize.steps"
INSTANCE = "STEP"  # the name that each file of the folder gives its algorithm
Options = TypeVar("Options")
Schema = TypeVar("Schema")


class Kind(IntEnum):
    """What a step does to the weights, in the order in which help lists the steps."""

    TRANSFORMS = 1
    """Changes weights so that the model computes the same and loses less in rounding."""
    PRUNES = 2
    """Sets two of every four weights of a row to zero."""
    ROUNDS = 3
    """Stores weights in the recipe's number format."""


@dataclass
class NoOptions:
    """The options of a step that has none."""


class StepSchema(Generic[Options]):
    """An algorithm as recipes use it: its name, options, rules and order."""

    name: str
    """Its name in recipes."""
    kind: Kind
    options: type[Options]
    """A dataclass. Its fields become options `recipe.NAME.FIELD`."""
    passes: float
    """Its cost, as a number of forward passes over the calibration text."""
    solves: bool = False
    """Whether it sums X'X over the text and solves for the weights by it, as GPTQ does. `passes`
    does not count that."""
    needs_text: bool = True
    """Whether it needs calibration text."""
    number_types: tuple[str, ...] = (INT, FLOAT)
    """The types of weights that it works with."""
    scale_types: tuple[str | None, ...] = (None, "fp8")
    """The types of scales that it works with."""
    needs_rounding: bool = False
    """Whether it only makes sense in a recipe that rounds at the end."""
    signs_scales: bool = False
    """Whether it may store a negative scale."""
    mixes_formats: bool = False
    """Whether it can round modules of one model to different formats."""
    undoes: ClassVar[Mapping[str, str]] = {}
    """Steps whose result is lost if this step follows them, and how it undoes them."""
    gates: tuple[str, ...] = ()
    """Options that check the result and change no weight."""
    options_beside_file: tuple[str, ...] = ()
    """Options that a recipe file of llm-compressor has no field for, and that may be given with
    it."""

    def check_options(self, options: Options) -> None:
        """Raises ValueError where options contradict each other."""

    def check_scale_type(self, option: str, weights: QuantArgs) -> None:
        """Raises ValueError where the step does not make scales of this type."""
        if weights.scale_type not in self.scale_types:
            raise ValueError(
                f"{option}.weights.scale_type={weights.scale_type}: {self.name} does not make such "
                "scales; use rounding"
            )

    def check_weights(self, option: str, weights: QuantArgs, options: Options) -> None:
        """Raises ValueError where the step cannot work on weights of this format.
        `option`: the start of the message."""


AnyStep = StepSchema[Any]


@cache
def known_steps() -> dict[str, AnyStep]:
    """Every step by name: by kind, and the cheapest of a kind first."""
    package = importlib.import_module(FOLDER)
    steps: dict[str, AnyStep] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{FOLDER}."):
        if module.ispkg:  # code that several algorithms share
            continue
        step = getattr(importlib.import_module(module.name), INSTANCE)
        assert isinstance(step, StepSchema), f"{module.name}.{INSTANCE}"
        assert step.name not in steps, f"{module.name}: a second step '{step.name}'"
        steps[step.name] = step
    ordered = sorted(
        steps.values(), key=lambda step: (step.kind, step.passes, step.solves, step.name)
    )
    return {step.name: step for step in ordered}


def names_of(*kinds: Kind) -> tuple[str, ...]:
    """The steps of these kinds."""
    return tuple(name for name, step in known_steps().items() if step.kind in kinds)


def prunes(names: Iterable[str]) -> bool:
    """Whether these steps set two of every four weights to zero."""
    return any(name in names_of(Kind.PRUNES) for name in names)


def may_sign_scales(names: Iterable[str]) -> bool:
    """Whether these steps may store a negative scale."""
    steps = known_steps()
    return any(steps[name].signs_scales for name in names if name in steps)


def options_with_file() -> tuple[str, ...]:
    """The options that may be given with a recipe file of llm-compressor, by their full names."""
    return tuple(
        f"recipe.{step.name}.{option}"
        for step in known_steps().values()
        for option in (*step.gates, *step.options_beside_file)
    )


def has_options(step: AnyStep) -> bool:
    return bool(fields(step.options))


def with_step_options(schema: type[Schema]) -> type[Schema]:
    """Adds a field with the options of each step, before `@dataclass` reads the fields."""
    for name, step in known_steps().items():
        if has_options(step):
            assert name not in schema.__annotations__, f"a recipe has an option {name} already"
            schema.__annotations__[name] = step.options
            setattr(schema, name, field(default_factory=step.options))
    return schema
