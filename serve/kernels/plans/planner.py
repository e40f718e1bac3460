"""From a layer's weights to its plan: prepares, proves, measures, and keeps what is used.

The first layer of a kind is planned. The others take over its plan, and prepare only the tensors
that the plan uses.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from conf.errors import one_line
from serve.kernels import op
from serve.kernels.op import Planned
from serve.kernels.plans.plan import Plan, Timing, plan_of
from serve.kernels.plans.proof import Proof, exact_inputs
from serve.kernels.plans.search import COMPILE_SECONDS, TOKENS, Prepared, Search
from serve.kernels.plans.store import KnownTimes, PlanStore, StoredPlan, identity_here
from serve.kernels.plans.timing import Clock, Contest, graph_time, lasting_times
from serve.kernels.plans.trials import Trials
from serve.kernels.products.compiling import run_once
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.settings import add_to_graph_key

logger = logging.getLogger("vllm.quantline")
NUMBERS = {None: "bf16", torch.int8: "int8"}
OWN_IS_FASTEST, NO_PRODUCT = "vLLM's own kernel is the fastest", "there is no other product"
Choose = Callable[[Sequence[Timing]], dict[int, tuple[str, Options]]]
"""From the timings of a search to a product, with its options, for each number of tokens."""


@dataclass(frozen=True)
class LayerRequest:
    """A layer to plan."""

    key: str
    """Equal for layers of one kind and shape, such as int8/24576x4096/sparse."""
    weight: Weight
    products: Sequence[Product]
    """The candidates, vLLM's own among them."""
    own: str
    """The name of vLLM's own product."""
    dtype: torch.dtype
    """Of plain activations."""
    rounded: torch.dtype | None = None
    """Of rounded activations; None where the format rounds none."""
    choose: Choose | None = None
    """Chooses by the timings instead of taking the fastest, where products have other costs."""
    tokens: Sequence[int] = TOKENS
    """Numbers of tokens to measure."""


@dataclass(frozen=True)
class PlannedLayer:
    """A layer that the op can run."""

    op_key: str
    planned: Planned
    tensors: list[torch.Tensor]
    refused: dict[str, str] = field(default_factory=dict)
    """Candidates that are not used, and why."""


Kind = tuple[str, tuple[str, ...]]
"""A layer's key, and the names of its candidates."""


class Planner:
    """Plans the layers of one engine. Clock and store can be replaced in tests."""

    def __init__(
        self,
        store: Callable[[], PlanStore] | None = None,
        clock: Clock = graph_time,
        contest: Contest = lasting_times,
    ) -> None:
        self.make_store = store or (lambda: PlanStore(identity_here()))
        self.clock, self.contest = clock, contest
        self.done: dict[Kind, PlannedLayer] = {}
        self.failed: dict[Kind, str] = {}

    def plan(self, request: LayerRequest) -> PlannedLayer:
        """Raises Unusable where vLLM's own path is the best, or ours fails in any way."""
        with torch.no_grad():
            return self._plan(request)

    def _plan(self, request: LayerRequest) -> PlannedLayer:
        kind = (request.key, tuple(product.name for product in request.products))
        if kind in self.failed:
            raise Unusable(self.failed[kind])
        first = self.done.get(kind)
        try:
            if first is None:
                layer = self._first(request, kind)
                # Only the layer itself keeps its tensors.
                first = self.done[kind] = replace(layer, tensors=[])
            else:
                layer = self._another(request, first)
        except Unusable:
            raise
        except Exception as error:  # a library that fails must not stop the engine
            raise Unusable(_reason(error)) from error
        if first.planned.plan.products == [request.own]:
            raise Unusable(OWN_IS_FASTEST)
        add_to_graph_key(layer.op_key)  # graphs hold it as a constant
        return layer

    def _another(self, request: LayerRequest, first: PlannedLayer) -> PlannedLayer:
        """A further layer with the plan of the first one."""
        if first.planned.plan.products == [request.own]:
            return first
        prepared = [product.prepare(request.weight) for product in first.planned.products]
        tensors = [tensor for of_product in prepared for tensor in of_product]
        return replace(first, tensors=tensors)

    def _first(self, request: LayerRequest, kind: Kind) -> PlannedLayer:
        trials = self.make_store().trials
        refused = trials.blamed(request.key)
        try:
            proof = Proof(request.weight, request.rounded, request.dtype)
            candidates = _prepared(request, proof, refused, trials)
            plan = self._proven_plan(request, candidates, proof, refused)
        except Exception as error:  # it takes long, so that it is not tried for each layer
            self.failed[kind] = _reason(error)
            raise
        used = [c for c in candidates if c.product.name in plan.products]
        planned = Planned(tuple(c.product for c in used), tuple(len(c.tensors) for c in used), plan)
        tensors = [tensor for candidate in used for tensor in candidate.tensors]
        identity = repr((plan.steps, planned.counts))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        layer = PlannedLayer(f"{request.key}/{digest}", planned, tensors, refused)
        op.put(layer.op_key, planned)
        return layer

    def _proven_plan(
        self,
        request: LayerRequest,
        candidates: list[Prepared],
        proof: Proof,
        refused: dict[str, str],
    ) -> Plan:
        """A plan whose options are proven, too. A product that fails there is dropped from the
        candidates, and the plan is made again."""
        while True:
            plan = self._stored_or_measured(request, candidates)
            refused |= plan.failures
            if request.choose is not None:
                plan = plan_of(request.choose(plan.timings), plan.timings)
            ours = [c for c in candidates if c.product.name != request.own]
            faults = {c.product.name: _fault(partial(proof.check_plan, c, plan)) for c in ours}
            wrong = {name: fault for name, fault in faults.items() if fault}
            if not wrong:
                return plan
            refused |= wrong
            candidates[:] = [c for c in candidates if c.product.name not in wrong]

    def _stored_or_measured(self, request: LayerRequest, candidates: list[Prepared]) -> Plan:
        store, names = self.make_store(), [candidate.product.name for candidate in candidates]
        stored = self._stored(store, request, candidates)
        if stored is not None:
            return stored
        with store.measuring():
            stored = self._stored(store, request, candidates)
            if stored is not None:  # another process has measured it
                return stored
            known = store.known(request.key, names)
            new = [name for name in names if name not in known.products]
            logger.info("quantline: %s: measuring %s, once", request.key, ", ".join(new))
            plan = self._search(request, candidates, store.trials, known).plan()
            if request.weight.codes.is_cuda:
                torch.cuda.empty_cache()  # the copies of the weights
            weight, numbers = request.weight, NUMBERS.get(request.rounded, "fp8")
            stored_plan = StoredPlan(
                request.key, tuple(names), plan, weight.rows, weight.columns, numbers
            )
            if plan.is_complete:
                store.keep(stored_plan)
        return plan

    def _stored(
        self, store: PlanStore, request: LayerRequest, candidates: list[Prepared]
    ) -> Plan | None:
        """The plan of these candidates: as it is stored, or by the times of other plans."""
        names = [candidate.product.name for candidate in candidates]
        stored = store.find(request.key, names)
        if stored is not None:
            return stored
        known = store.known(request.key, names)
        if not known.products.issuperset(names):
            return None
        return self._search(request, candidates, store.trials, known).plan()

    def _search(
        self,
        request: LayerRequest,
        candidates: list[Prepared],
        trials: Trials,
        known: KnownTimes,
    ) -> Search:
        weight = request.weight

        def inputs(tokens: int) -> Inputs:
            return exact_inputs(
                tokens, weight.columns, request.rounded, weight.codes, request.dtype
            )

        return Search(
            key=request.key,
            rows=weight.rows,
            columns=weight.columns,
            candidates=candidates,
            own=request.own,
            inputs=inputs,
            tokens=request.tokens,
            clock=self.clock,
            contest=self.contest if weight.codes.is_cuda else None,
            trying=trials.trying,
            known=known.products,
            timings=list(known.timings),
            failures=dict(known.failures),
        )


def _prepared(
    request: LayerRequest, proof: Proof, refused: dict[str, str], trials: Trials
) -> list[Prepared]:
    """The candidates that take the layer and are right. vLLM's own is trusted. Raises Unusable
    without it, or where there is no other."""
    refused.pop(request.own, None)
    prepared, candidates = [], []
    for product in request.products:
        if product.name not in refused:
            try:
                with trials.trying(request.key, [product.name]):
                    prepared.append(Prepared(product, product.prepare(request.weight)))
            except Exception as error:
                refused[product.name] = _reason(error)
    compiled = [candidate for candidate in prepared if candidate.product.compiles]
    with trials.trying(request.key, [candidate.product.name for candidate in compiled]):
        run_once([call for c in compiled for call in proof.calls(c)], COMPILE_SECONDS)
    for candidate in prepared:
        name = candidate.product.name
        try:
            with trials.trying(request.key, [name]):
                if name != request.own:
                    proof.check(candidate)
            candidates.append(candidate)
        except Exception as error:
            refused[name] = _reason(error)
    names = [candidate.product.name for candidate in candidates]
    if request.own not in names or len(names) < 2:
        raise Unusable("; ".join(f"{name}: {why}" for name, why in refused.items()) or NO_PRODUCT)
    return candidates


def _fault(check: Callable[[], None]) -> str:
    """Why a check failed; empty where it passed."""
    try:
        check()
    except Exception as error:
        return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    return one_line(error) if isinstance(error, Unusable) else f"fails: {one_line(error)}"
