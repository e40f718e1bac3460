"""Which product multiplies a block for how many tokens: measured once for a kind of block.

All products of a GPU read the same tensors, so a choice costs no memory. Each of ours is compared
with 64-bit numbers first. One that is wrong or fails is left out; unpacking in PyTorch remains.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from conf.errors import one_line
from serve.kernels.linear.planning import time_in_engine
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.plans.proof import exact_inputs
from serve.kernels.plans.search import Prepared, Search
from serve.kernels.plans.store import PlanStore, StoredPlan, identity_here
from serve.kernels.products.product import Inputs, Unusable
from serve.kernels.products.vptq import MOST_TOKENS, VptqChunks, VptqFewTokens
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.products.vptq_prepared import VectorProduct
from serve.kernels.products.vptq_unpack import VptqUnpack, VptqUnpackKernel
from serve.kernels.vptq.exact import VptqExact, dequantized

logger = logging.getLogger("vllm.quantline")
FEW, CHUNKS, UNPACKED = VptqFewTokens(), VptqChunks(), VptqUnpackKernel()
IN_TORCH, EXACT = VptqUnpack(), VptqExact()
OURS: tuple[VectorProduct, ...] = (FEW, CHUNKS, UNPACKED)
PRODUCTS: dict[str, VectorProduct] = {product.name: product for product in (*OURS, IN_TORCH, EXACT)}
EXACT_PLAN = Plan((Step(None, EXACT.name),))
TOKENS = (1, 4, 8, 16, 32, 64, 1024)
SECONDS = 3.0
"""Of measuring the candidates of a kind of block; best guesses have four times as long."""
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
    try:
        tensors = FEW.prepare(weight)
    except Unusable as reason:
        return PreparedBlock(EXACT_PLAN, EXACT.prepare(weight), {FEW.name: str(reason)})
    key = key_of(weight)
    if key not in _plans():
        _plans()[key] = _new_plan(key, weight, tensors)
    plan, refused = _plans()[key]
    return PreparedBlock(plan, tensors, refused)


def key_of(weight: VectorWeight) -> str:
    """Equal for blocks that the same kernels run at the same speed."""
    residuals = 0 if weight.residual is None else int(weight.residual.shape[0])
    parts = [
        *("vptq", f"{weight.rows}x{weight.columns}", f"v{weight.vector}"),
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
    key: str, weight: VectorWeight, tensors: list[torch.Tensor]
) -> tuple[Plan, dict[str, str]]:
    """Never raises: a model that is slow is better than one that does not load."""
    store = PlanStore(identity_here())
    refused, proven = store.trials.blamed(key), []
    for product in OURS:
        if product.name not in refused:
            try:
                with store.trials.trying(key, [product.name]):
                    prove(product, weight, tensors)
                proven.append(product)
            except Exception as error:
                refused[product.name] = one_line(error)
    plan = guessed_plan(weight, proven)
    try:
        plan = _stored_or_measured(store, key, weight, [*proven, IN_TORCH], tensors)
        _compile(plan, weight, tensors)
    except Exception as error:
        logger.warning("quantline: %s: could not be measured: %s", key, one_line(error))
    for name, reason in refused.items():
        logger.warning("quantline: %s: not %s: %s", key, name, reason)
    return plan, refused


def guessed_plan(weight: VectorWeight, products: Sequence[VectorProduct]) -> Plan:
    """Without measuring: the best guess of each product, in the range that it is made for."""
    ranges = ((FEW, MOST_TOKENS), (CHUNKS, GUESSED_CHUNKS), (UNPACKED, None))
    steps, by_name = [], {product.name: product for product in products}
    for product, end in ranges:
        used = by_name.get(product.name, IN_TORCH)
        options = used.options(weight.rows, weight.columns, product.fewest)[0]
        steps.append(Step(end, used.name, options))
    return Plan(tuple(steps))


def prove(product: VectorProduct, weight: VectorWeight, tensors: list[torch.Tensor]) -> None:
    """Raises Unusable where a product is wrong for this block."""
    exact, vectors, vector = EXACT.prepare(weight), int(weight.codes.shape[0]), weight.vector
    candidate = Prepared(product, tensors)
    for first in sorted({0, max(0, vectors - PROVEN_VECTORS)}):
        last = min(first + PROVEN_VECTORS, vectors)
        weights = dequantized(exact, first, last).double()
        for tokens in filter(candidate.takes, PROVEN):
            inputs = _inputs(weight, tokens)
            (options, *_) = product.options(weight.rows, weight.columns, tokens)
            found = product.multiply(inputs, tensors, options)[:, first * vector : last * vector]
            right = inputs.plain.double() @ weights.t()
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
        search = Search(
            key=key, rows=weight.rows, columns=weight.columns,
            candidates=[Prepared(product, tensors) for product in products],
            own=IN_TORCH.name, inputs=lambda tokens: _inputs(weight, tokens), tokens=TOKENS,
            seconds=SECONDS, clock=time_in_engine, trying=store.trials.trying,
        )  # fmt: skip
        plan = search.plan()
        if weight.codes.is_cuda:
            torch.cuda.empty_cache()  # the copies of the weights
        if plan.is_complete:
            store.keep(StoredPlan(key, tuple(names), plan, weight.rows, weight.columns, "bf16"))
    return plan


def _compile(plan: Plan, weight: VectorWeight, tensors: list[torch.Tensor]) -> None:
    """Runs each kernel of a plan once, as a CUDA graph cannot be captured while one is compiled.
    Chunks end with any number of tokens."""
    begin = 1
    for step in plan.steps:
        sizes = (1, 8, 16) if step.product == CHUNKS.name else (begin, step.up_to or begin)
        for tokens in sizes:
            PRODUCTS[step.product].multiply(_inputs(weight, tokens), tensors, step.options)
        begin = (step.up_to or 0) + 1


def _inputs(weight: VectorWeight, tokens: int) -> Inputs:
    return exact_inputs(tokens, weight.columns, None, weight.codes, weight.book.dtype)
