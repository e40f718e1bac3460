"""Finds the plan of a kind of layer: measures every candidate, and takes the fastest.

Kernels that must be compiled are compiled first, many at once. Then each product's best guess is
measured for every number of tokens, then the other options, as far as the time allows. For long
prompts, products that are nearly as fast as the best are timed again under lasting load. vLLM's own
product stays where ours is not faster by more than noise.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from serve.kernels.plans.plan import Plan, Timing, plan_of
from serve.kernels.plans.timing import (
    Call,
    Clock,
    Contest,
    cache_bytes,
    copied,
    copies_needed,
    graph_time,
)
from serve.kernels.products.compiling import run_once
from serve.kernels.products.product import Inputs, Options, Product, Unusable

logger = logging.getLogger("vllm.quantline")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
NOISE = 0.02
SECONDS = 10.0
FIRST_ROUND = 4
"""How much more time the best guesses have."""
LONG_PROMPT, NEARLY = 4096, 1.2
"""Tokens from which on a product can take the GPU to its power limit; and how much longer than the
best one a product may take to be timed again."""
COMPILE_SECONDS = 6.0
"""Five shapes of a model then take 90 seconds at most, once."""


@dataclass(frozen=True)
class Prepared:
    """A product and the tensors that it made of a layer's weights."""

    product: Product
    tensors: list[torch.Tensor]

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def takes(self, tokens: int) -> bool:
        most = self.product.most
        return self.product.fewest <= tokens and (most is None or tokens <= most)


Copies = dict[str, list[list[torch.Tensor]]]
"""By the product's name."""


def _untold(key: str, products: Sequence[str]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass
class Search:
    """The search for one kind of layer and shape."""

    key: str
    rows: int
    columns: int
    candidates: Sequence[Prepared]
    own: str
    """The name of vLLM's own product, which takes any number of tokens."""
    inputs: Callable[[int], Inputs]
    """Makes activations of that many tokens."""
    tokens: Sequence[int] = TOKENS
    seconds: float = SECONDS
    clock: Clock = graph_time
    contest: Contest | None = None
    """Times products under lasting load."""
    compile_all: Callable[[Sequence[Call], float], int] = run_once
    trying: Callable[[str, Sequence[str]], AbstractContextManager[None]] = _untold
    """Told the key and the products that run next."""
    now: Callable[[], float] = time.monotonic
    known: frozenset[str] = frozenset()
    """Products that were measured before: their times are given, and they do not run."""
    timings: list[Timing] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Products that failed while they were measured, and how."""

    def plan(self) -> Plan:
        """Measures and chooses. Raises Unusable where vLLM's own product cannot be measured."""
        sizes = self._sizes()
        self._compile(sizes)
        copies: Copies = {}
        is_complete = self._measure_all(sizes, copies)
        for tokens in sizes:
            if self.contest is not None and tokens >= LONG_PROMPT:
                self._hold(self.contest, tokens, copies)
        measured = {timing.product for timing in self.timings}
        if self.own not in measured:
            raise Unusable(f"could not be measured: {self.failures.get(self.own, 'no time left')}")
        plan = plan_of(self._choices(sizes), tuple(self.timings))
        failures = {name: why for name, why in self.failures.items() if name not in measured}
        return replace(plan, failures=failures, is_complete=is_complete)

    @property
    def _unknown(self) -> list[Prepared]:
        return [c for c in self.candidates if c.product.name not in self.known]

    def _compile(self, sizes: list[int]) -> None:
        """Runs each kernel that must be compiled once, the best guesses first."""
        calls: dict[tuple[str, Options], Call] = {}
        inputs: dict[int, Inputs] = {}
        for _, tokens, candidate, options in self._rounds(sizes):
            product, kernel = candidate.product, (candidate.product.name, options)
            if product.compiles and kernel not in calls:
                few = inputs.get(tokens) or inputs.setdefault(tokens, self.inputs(tokens))
                calls[kernel] = partial(product.multiply, few, candidate.tensors, options)
        if calls:
            with self.trying(self.key, sorted({name for name, _ in calls})):
                count = self.compile_all(list(calls.values()), COMPILE_SECONDS)
            logger.info("quantline: %s: %d of %d kernels compiled", self.key, count, len(calls))

    def _measure_all(self, sizes: list[int], copies: Copies) -> bool:
        """Measures as much as the time allows; returns whether all best guesses were measured. They
        have more time: plans without them are not stored."""
        begin = self.now()
        inputs: dict[int, Inputs] = {}
        for number, tokens, candidate, options in self._rounds(sizes):
            allowed = self.seconds * (1 if number else FIRST_ROUND)
            if self.now() - begin > allowed:
                logger.info("quantline: %s: not all options measured in time", self.key)
                return number > 0
            if tokens not in inputs:
                inputs = {tokens: self.inputs(tokens)}  # one at a time: 8,192 tokens are large
            self._measure(candidate, _copies(candidate, copies), inputs[tokens], options)
        return True

    def _hold(self, contest: Contest, tokens: int, copies: Copies) -> None:
        """Times the best options of products under lasting load, those that an earlier plan has
        measured among them, if one is new. Their other options change by the same factor, and
        slower products by the smallest one."""
        best: dict[str, Timing] = {}
        for timing in self.timings:
            if timing.tokens == tokens:
                before = best.get(timing.product, timing)
                best[timing.product] = min(before, timing, key=_time)
        limit = NEARLY * min((_time(timing) for timing in best.values()), default=0.0)
        close = [timing for timing in best.values() if timing.microseconds <= limit]
        if len(close) < 2 or self.known.issuperset(timing.product for timing in close):
            return
        prepared = {candidate.product.name: candidate for candidate in self.candidates}
        try:
            inputs = self.inputs(tokens)
            with self.trying(self.key, [timing.product for timing in close]):
                contenders = [(prepared[timing.product], timing.options) for timing in close]
                held = contest(
                    [_calls(one.product, _copies(one, copies), inputs, o) for one, o in contenders]
                )
        except Exception as error:  # the times are kept as they are
            logger.info("quantline: %s: no lasting load: %s", self.key, error)
            return
        factors = {
            timing.product: microseconds / timing.microseconds
            for timing, microseconds in zip(close, held, strict=True)
        }
        self.timings = [
            replace(t, microseconds=t.microseconds * factors.get(t.product, min(factors.values())))
            if t.tokens == tokens
            else t
            for t in self.timings
        ]

    def _sizes(self) -> list[int]:
        """The numbers of tokens to measure, with those at which a product begins or ends: a step
        of the plan then never reaches beyond what its product takes."""
        products = [candidate.product for candidate in self.candidates]
        ends = {product.fewest - 1 for product in products if product.fewest > 1}
        ends |= {product.most for product in products if product.most is not None}
        return sorted({*self.tokens, *ends})

    def _rounds(self, sizes: list[int]) -> Iterator[tuple[int, int, Prepared, Options]]:
        """The best guesses for all sizes, then the second options, and so on; each with the number
        of its round."""
        options = {
            (tokens, candidate.product.name): candidate.product.options(
                self.rows, self.columns, tokens
            )
            for tokens in sizes
            for candidate in self._unknown
            if candidate.takes(tokens)
        }
        for number in range(max(map(len, options.values()), default=0)):
            for tokens in sizes:
                for candidate in self._unknown:
                    of_candidate = options.get((tokens, candidate.product.name), [])
                    if number < len(of_candidate):
                        yield number, tokens, candidate, of_candidate[number]

    def _measure(
        self,
        candidate: Prepared,
        copies: list[list[torch.Tensor]],
        inputs: Inputs,
        options: Options,
    ) -> None:
        product, tokens = candidate.product, inputs.plain.shape[0]
        try:
            with self.trying(self.key, [product.name]):
                microseconds = self.clock(_calls(product, copies, inputs, options))
        except Exception as error:  # an algorithm that a library does not have for this shape
            reason = " ".join(str(error).split()) or type(error).__name__
            self.failures[product.name] = f"{tokens} tokens, {dict(options)}: {reason[:200]}"
            return
        timing = Timing(tokens, product.name, options, microseconds, candidate.weight_bytes)
        self.timings.append(timing)

    def _choices(self, sizes: list[int]) -> dict[int, tuple[str, Options]]:
        """The choice for each size. One that was not measured is run as the next smaller one that
        was, where that product takes it; else by vLLM's own."""
        by_name = {candidate.product.name: candidate for candidate in self.candidates}

        def own_choice(tokens: int) -> tuple[str, Options]:
            return self.own, by_name[self.own].product.options(self.rows, self.columns, tokens)[0]

        choices: dict[int, tuple[str, Options]] = {}
        last = own_choice(sizes[0])
        for tokens in sizes:
            measured = [timing for timing in self.timings if timing.tokens == tokens]
            best = chosen(measured, self.own)
            if best is not None:
                last = (best.product, best.options)
            elif last[0] == self.own or not by_name[last[0]].takes(tokens):
                last = own_choice(tokens)
            choices[tokens] = last
        if by_name[last[0]].product.most is not None:  # the last step has no end
            choices[sizes[-1] + 1] = own_choice(sizes[-1] + 1)
        return choices


def _copies(candidate: Prepared, made: Copies) -> list[list[torch.Tensor]]:
    """The copies of a candidate's weights, which are made once."""
    name, tensors = candidate.product.name, candidate.tensors
    if name not in made:
        cache = cache_bytes(tensors[0].device) if tensors else 0
        made[name] = copied(tensors, copies_needed(candidate.weight_bytes, cache))
    return made[name]


def _calls(
    product: Product, copies: list[list[torch.Tensor]], inputs: Inputs, options: Options
) -> list[Call]:
    """A call for each copy of the weights."""
    given = replace(inputs, scales=None) if product.scales_after else inputs
    return [partial(product.multiply, given, tensors, options) for tensors in copies]


def chosen(timings: Sequence[Timing], own: str) -> Timing | None:
    """The fastest; vLLM's own where that is slower by no more than noise. None without timings, or
    where vLLM's own was not measured: there is nothing to be faster than."""
    best_own = min((t for t in timings if t.product == own), key=_time, default=None)
    if best_own is None:
        return None
    best = min(timings, key=_time)
    return best if best.microseconds < best_own.microseconds * (1 - NOISE) else best_own


def _time(timing: Timing) -> float:
    return timing.microseconds
