"""For how many requests our attention is faster than vLLM's, and with which options.

Measured once for a GPU, versions, and heads of a layer, and kept beside the plans of products. A
step of a plan is a number of requests. A graph serves every length of context, so options are
chosen by several lengths, and must not be slower at any that was measured.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from serve.kernels.attention.launch import (
    DECODE_OPTIONS,
    NewTokens,
    Rope,
    decode,
    decode_options,
    reserve,
)
from serve.kernels.attention.proof import check
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.attention.trial_requests import PAGE, Pool
from serve.kernels.linear.conditions import capability
from serve.kernels.plans.plan import Plan, Step, Timing, plan_of
from serve.kernels.plans.store import PlanStore, StoredPlan
from serve.kernels.plans.timing import Call, Clock, graph_time
from serve.kernels.products.compiling import run_once
from serve.kernels.products.product import Options, Unusable

logger = logging.getLogger("vllm.quantline")
OURS, OWN = "decode_attention", "flash_attention"
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (256, 512, 2048, 16384)
NOISE = 0.02
"""Ours is used where it is faster by more than this, and slower by no more at any length."""
COMPILE_SECONDS = 20.0
HOPPER = 90
"""The compute capability, times ten, from which on kernels can overlap."""
MOST_PARTS, MOST_EAGER = 64, 16
"""Of a request; and of them, those that begin before its length is known."""
PROGRAMS = 512
"""Of all requests that begin so: an H200 has 132 multiprocessors."""
SPLITTING = (1, 2, 4)
"""The most parts of a request, as multiples of those that begin so."""
PARTS_TILES = ((16, 1, 3), (16, 1, 5), (32, 2, 3), (32, 2, 5), (64, 4, 3), (64, 4, 5))
WHOLE_TILES = ((16, 1, 3), (16, 1, 5), (32, 1, 3), (32, 2, 5), (64, 4, 5))
"""Tokens of a tile, warps and stages, for requests with parts and for others."""
Own = Callable[[NewTokens, Cache, torch.Tensor], Call]
"""From new tokens, a cache and a place for results to a call of vLLM's own attention."""


def key_of(shape: Shape, context: int) -> str:
    return f"{shape}/context {context}"


def options_for(shape: Shape, requests: int, overlaps: bool = True) -> list[Options]:
    """Options to measure. Kernels of GPUs before Hopper cannot overlap."""
    eager = min(max(PROGRAMS // (requests * shape.key_heads), 1), MOST_EAGER)
    return [
        decode_options(tokens, split, warps, stages, eager, int(overlaps))
        for split in (eager * times for times in SPLITTING)
        if split <= MOST_PARTS
        for tokens, warps, stages in (PARTS_TILES if split > 1 else WHOLE_TILES)
    ]


@dataclass
class AttentionSearch:
    """Measures the attention of one kind of layer."""

    shape: Shape
    pool: Pool
    own: Own
    clock: Clock = graph_time
    requests: Sequence[int] = REQUESTS
    contexts: Sequence[int] = CONTEXTS
    overlaps: bool = True
    timings: dict[int, list[Timing]] = field(default_factory=dict)
    """By length of context."""

    def plan(self) -> Plan:
        """vLLM's own for all numbers of requests, where ours is never faster."""
        self._compile()
        for context in self.contexts:
            self.timings[context] = list(self._measured(context))
        choices = {requests: self._choice(requests) for requests in self.requests}
        # More requests than were measured.
        return plan_of({**choices, max(choices) + 1: (OWN, ())})

    def _compile(self) -> None:
        new = self.pool.copies(1, PAGE)[0]
        out = _place_of(new)
        every = sorted({one for count in self.requests for one in self._options(count)})
        calls = [
            partial(decode, self.shape, new, self.pool.cache, out, 1.0, options)
            for options in every
        ]
        count = run_once(calls, COMPILE_SECONDS)
        logger.info("quantline: %s: %d of %d kernels compiled", self.shape, count, len(calls))

    def _options(self, requests: int) -> list[Options]:
        return options_for(self.shape, requests, self.overlaps)

    def _measured(self, context: int) -> Iterator[Timing]:
        for requests in self.requests:
            if not self.pool.holds(requests, context):
                continue
            places = [(new, _place_of(new)) for new in self.pool.copies(requests, context)]
            size = requests * context * self.shape.token_bytes
            own = [self.own(new, self.pool.cache, out) for new, out in places]
            yield Timing(requests, OWN, (), self.clock(own), size)
            for options in self._options(requests):
                calls = [
                    partial(decode, self.shape, new, self.pool.cache, out, 1.0, options)
                    for new, out in places
                ]
                try:
                    microseconds = self.clock(calls)
                except Exception as error:  # such as more shared memory than this GPU has
                    logger.debug("quantline: %s, %s: %s", self.shape, dict(options), error)
                    continue
                yield Timing(requests, OURS, options, microseconds, size)

    def _choice(self, requests: int) -> tuple[str, Options]:
        """The options with the best ratio to vLLM's own over the lengths, if that is a gain."""
        ratios: dict[Options, list[float]] = {}
        for timings in self.timings.values():
            here = [timing for timing in timings if timing.tokens == requests]
            own = next((one.microseconds for one in here if one.product == OWN), None)
            for timing in here:
                if own is not None and timing.product == OURS:
                    ratios.setdefault(timing.options, []).append(timing.microseconds / own)
        usable = {
            options: math.prod(found) ** (1 / len(found))
            for options, found in ratios.items()
            if max(found) <= 1 + NOISE
        }
        best = min(usable, key=lambda options: usable[options], default=None)
        return (OWN, ()) if best is None or usable[best] > 1 - NOISE else (OURS, best)


def _place_of(new: NewTokens) -> torch.Tensor:
    """A place for results."""
    return torch.empty_like(new.queries, memory_format=torch.contiguous_format)


def planned(
    shape: Shape, device: torch.device, own: Own, store: PlanStore, rope: Rope | None = None
) -> Plan:
    """The plan of a kind of layer, stored or measured, and proven. With `rope`, attention may have
    to rotate, which is proven, too. Raises Unusable where vLLM's own attention is to run it."""
    refused = store.trials.blamed(str(shape)).get(OURS)
    if refused:
        raise Unusable(refused)
    with torch.no_grad():
        plan = _stored(shape, store)
        if plan is None:
            with store.measuring():
                # Another process may have measured it meanwhile.
                plan = _stored(shape, store) or _measured(shape, device, own, store)
        ours = [step for step in plan.steps if step.product == OURS]
        if not ours:
            raise Unusable("vLLM's own attention is the fastest")
        with store.trials.trying(str(shape), [OURS]):
            _prove(shape, ours, device, rope)
    torch.cuda.empty_cache()  # of the proofs, several of which ran at once
    return plan


def _prove(shape: Shape, ours: list[Step], device: torch.device, rope: Rope | None) -> None:
    for step in ours:
        assert step.up_to is not None, "beyond what was measured vLLM's own runs"
        reserve(shape, step.up_to, dict(step.options)["SPLIT"], device)
    used = sorted({step.options for step in ours})
    for one in (None,) if rope is None else (None, rope):
        run_once([partial(check, shape, options, device, one) for options in used], math.inf)
        for options in used:
            check(shape, options, device, one)


def _stored(shape: Shape, store: PlanStore) -> Plan | None:
    """None, too, where an older version measured it, whose kernel had other options."""
    plans = [store.find(key_of(shape, context), (OURS, OWN)) for context in CONTEXTS]
    if None in plans or (plan := plans[0]) is None:
        return None
    used = [step.options for step in plan.steps if step.product == OURS]
    used += [timing.options for timing in plan.timings if timing.product == OURS]
    is_ours = all(dict(options).keys() == DECODE_OPTIONS for options in used)
    return plan if is_ours else None


def _measured(shape: Shape, device: torch.device, own: Own, store: PlanStore) -> Plan:
    logger.info("quantline: %s: measuring, once", shape)
    overlaps = (capability() or HOPPER) >= HOPPER
    search = AttentionSearch(shape, Pool.made(shape, device), own, overlaps=overlaps)
    with store.trials.trying(str(shape), [OURS]):
        plan = search.plan()
    for context, timings in search.timings.items():
        kept = Plan(plan.steps, tuple(timings))
        rows = 2 * shape.heads * shape.width  # as of a product with the tokens of the context
        key = key_of(shape, context)
        store.keep(StoredPlan(key, (OURS, OWN), kept, rows, context, "bf16"))
    del search
    torch.cuda.empty_cache()
    return plan
