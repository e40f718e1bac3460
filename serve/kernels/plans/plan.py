"""A plan: the product and its options for each range of tokens, and the times that led to it."""

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property

from serve.kernels.products.product import Options
from serve.kernels.record import TokenRange


@dataclass(frozen=True)
class Step:
    """A range of tokens, from the end of the step before."""

    up_to: int | None
    """The most tokens; None for any number. Only the last step has none."""
    product: str
    options: Options = ()


@dataclass(frozen=True)
class Timing:
    """The time of one candidate."""

    tokens: int
    product: str
    options: Options
    microseconds: float
    weight_bytes: int = 0
    """Bytes of the tensors that the product reads for each call."""

    def __post_init__(self) -> None:
        if not 0 < self.microseconds < math.inf:
            raise ValueError(f"a time of {self.microseconds} µs")


@dataclass(frozen=True)
class Plan:
    """The choice for all numbers of tokens."""

    steps: tuple[Step, ...]
    timings: tuple[Timing, ...] = field(default=(), compare=False)
    failures: dict[str, str] = field(default_factory=dict, compare=False)
    """Products that could not be measured, and why."""
    is_complete: bool = field(default=True, compare=False)
    """Whether each product was measured for each number of tokens that it takes. Other plans are
    not stored."""

    def __post_init__(self) -> None:
        ends = [step.up_to for step in self.steps]
        if not ends or ends[-1] is not None or None in ends[:-1]:
            raise ValueError("a plan needs a last step for any number of tokens, and only one")
        known_ends = [end for end in ends if end is not None]
        if known_ends != sorted(set(known_ends)) or min(known_ends, default=1) < 1:
            raise ValueError("a plan's steps must be in the order of their tokens")

    @cached_property
    def ends(self) -> list[int]:
        """The most tokens of each step but the last."""
        return [step.up_to for step in self.steps if step.up_to is not None]

    def step(self, tokens: int) -> Step:
        """The choice for a number of tokens."""
        return self.steps[bisect_left(self.ends, tokens)]

    def steps_in(self, start: int, end: int) -> tuple[Step, ...]:
        """The choices for these numbers of tokens."""
        return self.steps[bisect_left(self.ends, start) : bisect_left(self.ends, end) + 1]

    @property
    def products(self) -> list[str]:
        """The products that it uses, in order of their first step."""
        return list(dict.fromkeys(step.product for step in self.steps))

    @property
    def ranges(self) -> tuple[TokenRange, ...]:
        """The plan for a record: neighbours that differ in options only are one range."""
        kept: list[TokenRange] = []
        for step in self.steps:
            if kept and kept[-1].product == step.product:
                kept.pop()
            kept.append(TokenRange(step.up_to, step.product))
        return tuple(kept)


def plan_of(choices: dict[int, tuple[str, Options]], timings: tuple[Timing, ...] = ()) -> Plan:
    """The plan of a choice for each measured number of tokens. A number between two is run as the
    larger; one above all, as the largest. Equal neighbours become one step."""
    steps: list[Step] = []
    for tokens, (product, options) in sorted(choices.items()):
        if steps and (steps[-1].product, steps[-1].options) == (product, options):
            steps.pop()
        steps.append(Step(tokens, product, options))
    steps[-1] = Step(None, steps[-1].product, steps[-1].options)
    return Plan(tuple(steps), timings)
