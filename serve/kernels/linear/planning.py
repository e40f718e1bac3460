"""Plans of linear layers: what serve.kernels.plans measures, chosen among by `choice`."""

from collections.abc import Sequence
from functools import cache, partial

import torch

from serve.kernels.linear.catalog import layout_of
from serve.kernels.linear.choice import CAPTURED, Candidate, best_times, choices, steady
from serve.kernels.plans.plan import Timing
from serve.kernels.plans.planner import LayerRequest, PlannedLayer, Planner
from serve.kernels.plans.search import TOKENS
from serve.kernels.plans.timing import Call, event_time, graph_time
from serve.kernels.products.product import Options, Product, Weight

HEAD_TOKENS = tuple(tokens for tokens in TOKENS if tokens <= 1024)
"""The head multiplies the last token of each request only, and vLLM runs at most 1,024 requests
unless told otherwise. Its activations at 8,192 tokens would take gigabytes."""


def plan_layer(
    key: str,
    weight: Weight,
    products: Sequence[Product],
    own: str,
    dtype: torch.dtype,
    rounded: torch.dtype | None,
    second_layout: bool,
    head: bool = False,
) -> PlannedLayer:
    """Plans a layer; raises Unusable where vLLM's own kernel is to run it."""

    def choose(timings: Sequence[Timing]) -> dict[int, tuple[str, Options]]:
        candidates = [candidate_of(product) for product in products]
        best = best_times(timings, candidates)
        if not best:
            return {1: (own, ())}
        chosen = choices(best, candidates, own, second_layout)
        traceable = {product.name for product in products if product.traceable}
        # No compiled graph has the head.
        return chosen if head else steady(chosen, timings, traceable)

    tokens = HEAD_TOKENS if head else TOKENS
    request = LayerRequest(key, weight, products, own, dtype, rounded, choose, tokens)
    return planner(second_layout).plan(request)


@cache
def planner(second_layout: bool) -> Planner:
    """One for all layers of a process: the first layer of a shape is measured, others follow it."""
    return Planner(clock=time_in_engine)


def candidate_of(product: Product) -> Candidate:
    return Candidate(
        product.name, product.reads_rounded, layout_of(product), product.most is not None
    )


def time_in_engine(calls: Sequence[Call]) -> float:
    """Microseconds of a call, in a CUDA graph where vLLM has one for that many tokens."""
    first = calls[0]
    assert isinstance(first, partial)
    tokens = first.args[0].plain.shape[0]
    return graph_time(calls) if tokens <= CAPTURED else event_time(calls)
