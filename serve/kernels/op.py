"""The one custom op of our kernels, quantline::linear, and the table of plans that it looks up.

The op is opaque to torch.compile. It chooses the product by the number of tokens, which is fixed in
a captured CUDA graph, so the choice costs nothing there. Its key is the same for all layers of one
kind and shape: vLLM compiles equal layers once.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from serve.kernels.define import define
from serve.kernels.plans.plan import Plan
from serve.kernels.products.product import Inputs, Options, Product

NAME = "linear"
SCHEMA = (
    "(Tensor x, Tensor? rounded, Tensor? scales, Tensor[] tensors, str key, int rows,"
    " bool scales_after=False) -> Tensor"
)
Multiply = Callable[[Inputs, list[torch.Tensor], Options], torch.Tensor]


class Call(NamedTuple):
    """What a step of a plan runs: looked up once, as the op is called for each layer and pass."""

    product: Product
    first: int
    """Of the layer's tensors."""
    last: int
    options: Options

    def run(
        self, multiply: Multiply, inputs: Inputs, tensors: list[torch.Tensor], scales_after: bool
    ) -> torch.Tensor:
        """`multiply` is a method of the product. `scales_after`: the caller multiplies the result
        by the scales."""
        given, scales = tensors[self.first : self.last], inputs.scales
        if not scales_after:
            return multiply(inputs, given, self.options)
        if self.product.reads_rounded and inputs.rounded is not None:
            return multiply(Inputs(inputs.plain, inputs.rounded), given, self.options)
        result = multiply(inputs, given, self.options)
        # Rare: a graph for numbers of tokens of which only some read rounded activations.
        return result if scales is None else (result.float() / scales).to(result.dtype)


@dataclass(frozen=True)
class Planned:
    """The products of a kind of layer, and which of them runs when."""

    products: tuple[Product, ...]
    counts: tuple[int, ...]
    """How many of a layer's tensors belong to each product, in the order of `products`."""
    plan: Plan

    def __post_init__(self) -> None:
        if len(self.products) != len(self.counts):
            raise ValueError("each product needs its number of tensors")
        missing = set(self.plan.products) - {product.name for product in self.products}
        if missing:
            raise ValueError(f"the plan names products that are not there: {sorted(missing)}")

    @cached_property
    def places(self) -> dict[str, tuple[Product, int, int]]:
        """Each product by its name, with the first and last place of its tensors."""
        places, first = {}, 0
        for product, count in zip(self.products, self.counts, strict=True):
            places[product.name] = (product, first, first + count)
            first += count
        return places

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """One for each step of the plan."""
        found = []
        for step in self.plan.steps:
            product, first, last = self.places[step.product]
            found.append(Call(product, first, last, step.options))
        return tuple(found)

    @property
    def reads_rounded(self) -> bool:
        """Whether the op needs rounded activations for some number of tokens."""
        return any(self.places[name][0].reads_rounded for name in self.plan.products)

    @property
    def scales_after(self) -> bool:
        """Whether a product is faster if the caller applies the scales of rounded activations."""
        return any(self.places[name][0].scales_after for name in self.plan.products)

    def call(self, tokens: int) -> Call:
        """What runs for so many tokens."""
        return self.calls[bisect_left(self.plan.ends, tokens)]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], scales_after: bool = False
    ) -> torch.Tensor:
        """`scales_after`: the caller multiplies the result by the scales."""
        call = self.call(inputs.plain.shape[0])
        return call.run(call.product.multiply, inputs, tensors, scales_after)

    def only_call(self, start: int, end: int) -> Call | None:
        """The call for all of these numbers of tokens; None where there are several."""
        first = self.call(start)
        return first if first is self.call(end) else None


_TABLE: dict[str, Planned] = {}


def put(key: str, planned: Planned) -> None:
    """Makes a plan known to the op, once for a kind of layer and shape."""
    register()
    _TABLE[key] = planned


def get(key: str) -> Planned | None:
    """The plan of a key; None where no layer of that kind was loaded."""
    return _TABLE.get(key)


def linear(
    x: torch.Tensor,
    rounded: torch.Tensor | None,
    scales: torch.Tensor | None,
    tensors: list[torch.Tensor],
    key: str,
    rows: int,
    scales_after: bool = False,
) -> torch.Tensor:
    """The product of activations [tokens, K] with a layer's weights: [tokens, rows].
    `scales_after`: the caller multiplies it by the scales of the rounded activations."""
    result: torch.Tensor = torch.ops.quantline.linear(
        x, rounded, scales, tensors, key, rows, scales_after
    )
    return result


def _linear(
    x: torch.Tensor,
    rounded: torch.Tensor | None,
    scales: torch.Tensor | None,
    tensors: list[torch.Tensor],
    key: str,
    rows: int,
    scales_after: bool = False,
) -> torch.Tensor:
    if x.shape[0] == 0:
        return x.new_empty((0, rows))
    return _TABLE[key].multiply(Inputs(x, rounded, scales), tensors, scales_after)


def _linear_fake(
    x: torch.Tensor,
    rounded: torch.Tensor | None,
    scales: torch.Tensor | None,
    tensors: list[torch.Tensor],
    key: str,
    rows: int,
    scales_after: bool = False,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], rows))


def register() -> None:
    """Defines the op, once in a process. Products rely on the strides of the traced tensors."""
    define(NAME, SCHEMA, _linear, _linear, _linear_fake, exact_strides=True)
