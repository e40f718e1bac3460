"""Which product multiplies a block for how many tokens: measured once for a kind of block.

All products of a GPU read the same tensors, so a choice costs no memory.
"""

import logging
from functools import cache

import torch

from conf.errors import one_line
from serve.kernels.linear.planning import time_in_engine
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.plans.proof import exact_inputs
from serve.kernels.plans.search import Prepared, Search
from serve.kernels.plans.store import PlanStore, StoredPlan, identity_here
from serve.kernels.products.product import Inputs, Unusable
from serve.kernels.products.vptq import VptqChunks, VptqFewTokens
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.products.vptq_prepared import VectorProduct
from serve.kernels.products.vptq_unpack import VptqUnpack
from serve.kernels.vptq.exact import VptqExact, dequantized

logger = logging.getLogger("vllm.quantline")
FEW, CHUNKS, MANY, EXACT = VptqFewTokens(), VptqChunks(), VptqUnpack(), VptqExact()
PRODUCTS: dict[str, VectorProduct] = {
    product.name: product for product in (FEW, CHUNKS, MANY, EXACT)
}
EXACT_PLAN = Plan((Step(None, EXACT.name),))
TOKENS = (1, 4, 8, 16, 32, 64, 1024)
SECONDS = 3.0
"""Of measuring the candidates of a kind of block; best guesses have four times as long."""
PROVEN = (1, 7, 16, 17)
"""Numbers of tokens. Each size of the kernel is among them, so that all are compiled here."""
PROVEN_VECTORS = 64
"""Rows of vectors at the beginning and at the end whose products are checked."""


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


def prepared_block(weight: VectorWeight) -> tuple[Plan, list[torch.Tensor], str]:
    """The plan of a block, the tensors that its products read, and why our kernel does not run it;
    empty where it does."""
    if weight.codes.device.type == "cpu":
        return EXACT_PLAN, EXACT.prepare(weight), ""
    try:
        tensors = FEW.prepare(weight)
    except Unusable as reason:
        return EXACT_PLAN, EXACT.prepare(weight), str(reason)
    key = key_of(weight)
    try:
        if key not in _plans():
            prove(weight, tensors)
            _plans()[key] = _stored_or_measured(key, weight, tensors)
        return _plans()[key], tensors, ""
    except Exception as error:  # a model that loads slowly is better than one that does not
        _plans()[key] = Plan((Step(None, MANY.name, MANY.options(0, 0, 0)[0]),))
        logger.warning("quantline: %s is unpacked for each product: %s", key, one_line(error))
        return _plans()[key], tensors, one_line(error)


@cache
def _plans() -> dict[str, Plan]:
    """The plans of this process."""
    return {}


def guessed_plan(weight: VectorWeight) -> Plan:
    """Without measuring: the best guess of each product, in the range that it is made for."""

    def step(product: VectorProduct, tokens: int | None) -> Step:
        options = product.options(weight.rows, weight.columns, tokens or 1024)[0]
        return Step(tokens, product.name, options)

    return Plan((step(FEW, FEW.most), step(CHUNKS, 64), step(MANY, None)))


def prove(weight: VectorWeight, tensors: list[torch.Tensor]) -> None:
    """Raises Unusable where our kernel is wrong for the first layer of a kind."""
    plan, vector = guessed_plan(weight), weight.vector
    exact = EXACT.prepare(weight)
    vectors = int(weight.codes.shape[0])
    for first in sorted({0, max(0, vectors - PROVEN_VECTORS)}):
        last = min(first + PROVEN_VECTORS, vectors)
        rows = dequantized(exact, first, last).double()
        for tokens in PROVEN:
            step = plan.step(tokens)
            inputs = _inputs(weight, tokens)
            found = PRODUCTS[step.product].multiply(inputs, tensors, step.options)
            right = inputs.plain.double() @ rows.t()
            error = (
                found[:, first * vector : last * vector].double() - right
            ).norm() / right.norm()
            if not error <= FEW.tolerance:
                raise Unusable(f"{step.product}: wrong by {float(error):.2g} for {tokens} tokens")


def _stored_or_measured(key: str, weight: VectorWeight, tensors: list[torch.Tensor]) -> Plan:
    names, store = [FEW.name, CHUNKS.name, MANY.name], PlanStore(identity_here())
    stored = store.find(key, names)
    if stored is not None:
        return stored
    with store.measuring():
        stored = store.find(key, names)  # another process may have measured it
        if stored is not None:
            return stored
        logger.info("quantline: %s: measuring, once", key)
        search = Search(
            key=key, rows=weight.rows, columns=weight.columns,
            candidates=[Prepared(product, tensors) for product in (FEW, CHUNKS, MANY)],
            own=MANY.name, inputs=lambda tokens: _inputs(weight, tokens), tokens=TOKENS,
            seconds=SECONDS, clock=time_in_engine, trying=store.trials.trying,
        )  # fmt: skip
        plan = search.plan()
        torch.cuda.empty_cache()  # the copies of the weights
        if plan.is_complete:
            store.keep(StoredPlan(key, tuple(names), plan, weight.rows, weight.columns, "bf16"))
    return plan


def _inputs(weight: VectorWeight, tokens: int) -> Inputs:
    return exact_inputs(tokens, weight.columns, None, weight.codes, weight.book.dtype)
