"""Which product multiplies a block for how many tokens: measured once for a kind of block.

All products of a family read the same tensors, so a choice costs no memory. Each of ours is
compared with 64-bit numbers first. One that is wrong or fails is left out; unpacking in PyTorch
remains.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch

from conf.errors import one_line
from serve.kernels.linear.planning import time_in_engine
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.plans.proof import exact_inputs
from serve.kernels.plans.search import Prepared, Search
from serve.kernels.plans.store import PlanStore, StoredPlan, identity_here
from serve.kernels.products.compiling import run_once
from serve.kernels.products.product import Inputs, Unusable
from serve.kernels.products.short_vectors.layout import check_alike
from serve.kernels.products.short_vectors.product import ShortChunks, ShortFewTokens
from serve.kernels.products.short_vectors.unpack import ShortUnpack, ShortUnpackKernel
from serve.kernels.products.vptq import MOST_TOKENS, VptqChunks, VptqFewTokens
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.products.vptq_prepared import VectorProduct
from serve.kernels.products.vptq_unpack import VptqUnpack, VptqUnpackKernel
from serve.kernels.vptq.exact import VptqExact, dequantized

logger = logging.getLogger("vllm.quantline")


@dataclass(frozen=True)
class Family:
    """Products that read the same tensors."""

    few: VectorProduct
    chunks: VectorProduct
    unpacked: VectorProduct
    in_torch: VectorProduct

    @property
    def ours(self) -> tuple[VectorProduct, ...]:
        return self.few, self.chunks, self.unpacked


SHORT = Family(ShortFewTokens(), ShortChunks(), ShortUnpackKernel(), ShortUnpack())
"""Vectors of four in one codebook, and such layers joined."""
GENERAL = Family(VptqFewTokens(), VptqChunks(), VptqUnpackKernel(), VptqUnpack())
EXACT = VptqExact()
PRODUCTS: dict[str, VectorProduct] = {
    product.name: product
    for product in (*SHORT.ours, SHORT.in_torch, *GENERAL.ours, GENERAL.in_torch, EXACT)
}
EXACT_PLAN = Plan((Step(None, EXACT.name),))
TOKENS = (1, 4, 8, 16, 32, 64, 1024)
SECONDS = 3.0
"""Of measuring the candidates of a kind of block; best guesses have four times as long."""
COMPILED = (1, 8, 16)
"""Numbers of tokens that have kernels of their own."""
COMPILE_SECONDS = 10.0
PROVEN = (1, 7, 16, 17, 40)
"""Numbers of tokens, as far as a product takes them."""
PROVEN_VECTORS = 64
"""Rows of vectors at the beginning and at the end whose products are compared."""
GUESSED_CHUNKS = 64
"""The most tokens that are multiplied in chunks where nothing was measured."""


@dataclass(frozen=True)
class PreparedBlock:
    """What runs a block."""

    plan: Plan
    tensors: list[torch.Tensor]
    refused: dict[str, str] = field(default_factory=dict)
    """Products that are not used, and why."""


def prepared_block(weight: VectorWeight) -> PreparedBlock:
    if weight.codes.device.type == "cpu":
        return PreparedBlock(EXACT_PLAN, EXACT.prepare(weight))
    family = GENERAL if joined([weight]) is None else SHORT
    try:
        tensors = family.few.prepare(weight)
    except Unusable as reason:
        return PreparedBlock(EXACT_PLAN, EXACT.prepare(weight), {family.few.name: str(reason)})
    key = key_of(weight)
    if key not in _plans():
        _plans()[key] = _new_plan(key, weight, tensors, family)
    plan, refused = _plans()[key]
    return PreparedBlock(plan, tensors, refused)


def joined(weights: Sequence[VectorWeight]) -> VectorWeight | None:
    """Layers that share their input as one, where one launch can multiply all of them."""
    try:
        check_alike(weights)
    except Unusable:
        return None
    return replace(weights[0], joined=tuple(weights[1:]))


def key_of(weight: VectorWeight) -> str:
    """Equal for blocks that the same kernels run at the same speed."""
    residuals = 0 if weight.residual is None else int(weight.residual.shape[0])
    rows = "+".join(str(layer.rows) for layer in (weight, *weight.joined))
    parts = [
        *("vptq", f"{rows}x{weight.columns}", f"v{weight.vector}"),
        f"{weight.book.shape[0]}+{residuals}",
        *(["scales"] if weight.has_scales or weight.biases is not None else []),
        str(weight.book.dtype).removeprefix("torch."),
    ]
    return "/".join(parts)


@cache
def _plans() -> dict[str, tuple[Plan, dict[str, str]]]:
    """The plans of this process, and which products they do not use."""
    return {}


def _new_plan(
    key: str, weight: VectorWeight, tensors: list[torch.Tensor], family: Family
) -> tuple[Plan, dict[str, str]]:
    """Never raises: a model that is slow is better than one that does not load."""
    store = PlanStore(identity_here())
    refused, proven = store.trials.blamed(key), []
    for product in family.ours:
        if product.name not in refused:
            try:
                with store.trials.trying(key, [product.name]):
                    prove(product, weight, tensors)
                proven.append(product)
            except Exception as error:
                refused[product.name] = one_line(error)
    plan = guessed_plan(weight, proven, family)
    try:
        plan = _stored_or_measured(store, key, weight, with_own(proven, family), tensors)
        _compile(plan, weight, tensors)
    except Exception as error:
        logger.warning("quantline: %s: could not be measured: %s", key, one_line(error))
    for name, reason in refused.items():
        logger.warning("quantline: %s: not %s: %s", key, name, reason)
    return plan, refused


def with_own(proven: Sequence[VectorProduct], family: Family) -> list[VectorProduct]:
    """Products to measure. The last one takes any number of tokens: the kernel that unpacks if it
    does, since PyTorch is so slow that the others would not be measured in time."""
    others = [product for product in proven if product is not family.unpacked]
    takes_all = family.unpacked in proven and family.unpacked.fewest == 1
    return [*others, family.unpacked] if takes_all else [*proven, family.in_torch]


def guessed_plan(weight: VectorWeight, products: Sequence[VectorProduct], family: Family) -> Plan:
    """Without measuring: the best guess of each product, in the range that it is made for."""
    ends = (MOST_TOKENS, GUESSED_CHUNKS, None)
    steps, by_name = [], {product.name: product for product in products}
    for product, end in zip(family.ours, ends, strict=True):
        used = by_name.get(product.name, family.in_torch)
        options = used.options(weight.outputs, weight.columns, product.fewest)[0]
        steps.append(Step(end, used.name, options))
    return Plan(tuple(steps))


def prove(product: VectorProduct, weight: VectorWeight, tensors: list[torch.Tensor]) -> None:
    """Raises Unusable where a product is wrong for this block."""
    begin = 0
    for layer in (weight, *weight.joined):
        vectors, vector = int(layer.codes.shape[0]), layer.vector
        for first in sorted({0, max(0, vectors - PROVEN_VECTORS)}):
            last = min(first + PROVEN_VECTORS, vectors)
            weights = dequantized(EXACT.prepare(layer), first, last).double()
            here = slice(begin + first * vector, begin + last * vector)
            _prove_outputs(Prepared(product, tensors), weight, weights, here)
        begin += layer.rows


def _prove_outputs(
    candidate: Prepared, weight: VectorWeight, exact: torch.Tensor, here: slice
) -> None:
    for tokens in filter(candidate.takes, PROVEN):
        inputs, product = _inputs(weight, tokens), candidate.product
        (options, *_) = product.options(weight.outputs, weight.columns, tokens)
        found = product.multiply(inputs, candidate.tensors, options)[:, here]
        right = inputs.plain.double() @ exact.t()
        error = float((found.double() - right).norm() / right.norm())
        if not error <= product.tolerance:
            raise Unusable(f"wrong by {error:.2g} for {tokens} tokens")


def _stored_or_measured(
    store: PlanStore,
    key: str,
    weight: VectorWeight,
    products: Sequence[VectorProduct],
    tensors: list[torch.Tensor],
) -> Plan:
    names = [product.name for product in products]
    stored = store.find(key, names)
    if stored is not None:
        return stored
    with store.measuring():
        stored = store.find(key, names)  # another process may have measured it
        if stored is not None:
            return stored
        logger.info("quantline: %s: measuring %s, once", key, ", ".join(names))
        _compile_candidates(weight, products, tensors)
        search = Search(
            key=key, rows=weight.outputs, columns=weight.columns,
            candidates=[Prepared(product, tensors) for product in products],
            own=products[-1].name, inputs=lambda tokens: _inputs(weight, tokens), tokens=TOKENS,
            seconds=SECONDS, clock=time_in_engine, trying=store.trials.trying,
        )  # fmt: skip
        plan = search.plan()
        if weight.codes.is_cuda:
            torch.cuda.empty_cache()  # the copies of the weights
        if plan.is_complete:
            store.keep(StoredPlan(key, tuple(names), plan, weight.outputs, weight.columns, "bf16"))
    return plan


def _compile_candidates(
    weight: VectorWeight, products: Sequence[VectorProduct], tensors: list[torch.Tensor]
) -> None:
    """Compiles kernels for few tokens many at once: one by one they would take more time than there
    is to measure them."""
    calls = [
        partial(product.multiply, _inputs(weight, tokens), tensors, options)
        for tokens in COMPILED
        for product in products
        if product.most == MOST_TOKENS
        for options in product.options(weight.outputs, weight.columns, tokens)
    ]
    run_once(calls, COMPILE_SECONDS)


def _compile(plan: Plan, weight: VectorWeight, tensors: list[torch.Tensor]) -> None:
    """Runs each kernel of a plan once, as a CUDA graph cannot be captured while one is compiled.
    Few tokens may be another kernel for each number of them, and chunks end with any number."""
    begin = 1
    for step in plan.steps:
        product, last = PRODUCTS[step.product], step.up_to or begin
        is_chunks = step.product in (SHORT.chunks.name, GENERAL.chunks.name)
        first, most = (1, MOST_TOKENS) if is_chunks else (begin, min(last, MOST_TOKENS))
        for tokens in sorted({*range(first, most + 1), begin, last}):
            product.multiply(_inputs(weight, tokens), tensors, step.options)
        begin = (step.up_to or 0) + 1


def _inputs(weight: VectorWeight, tokens: int) -> Inputs:
    return exact_inputs(tokens, weight.columns, None, weight.codes, weight.book.dtype)
