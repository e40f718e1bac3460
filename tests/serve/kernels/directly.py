"""Compiles layers with Inductor, our op in them or the product itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from serve.kernels import op
from serve.kernels.direct import inline
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.products.product import Inputs, Options, Product

KEY = "direct"
Layer = Callable[..., torch.Tensor]


class Inline(CustomGraphPass):
    """Our pass alone, for a range of prompts. Keeps how many products it put into graphs."""

    def __init__(self) -> None:
        self.inlined = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.inlined += inline(graph, 513, 8192)

    def uuid(self) -> None:
        return None


def layer_of(
    product: Product, rows: int, count: int, options: Options = (), ends: tuple[int, ...] = ()
) -> Layer:
    """A layer of a plan with a step up to each of the ends, and one beyond; it takes activations,
    rounded ones and their scales if the product reads them, and the product's tensors."""
    steps = [Step(end, product.name, (("end", end),)) for end in ends]
    plan = Plan((*steps, Step(None, product.name, options)))
    op.put(KEY, op.Planned((product,), (count,), plan))

    def layer(*given: torch.Tensor, after: bool = False) -> torch.Tensor:
        x, *others = given
        rounded, scales = others[:2] if product.reads_rounded else (None, None)
        tensors = others[2:] if product.reads_rounded else others
        return op.linear(x, rounded, scales, tensors, KEY, rows, after)

    return layer


def given_of(inputs: Inputs, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments of a layer; the number of tokens varies when it is compiled."""
    activations = [one for one in (inputs.plain, inputs.rounded, inputs.scales) if one is not None]
    for one in activations:
        torch._dynamo.mark_dynamic(one, 0)
    return [*activations, *tensors]


@contextmanager
def inlining() -> Iterator[Inline]:
    """What is compiled here calls products directly."""
    one = Inline()
    with config.patch(post_grad_custom_post_pass=one, force_disable_caches=True):
        yield one
