"""Which of the measured products a layer uses, and which activations its op reads.

A plan's timings have every candidate for every measured number of tokens. The choice is not just
the fastest each time, because products cost something beside their own time:

- Rounding. It is fused with the kernel in front (a norm or an activation function), and its time
  is not in the timings. A product of plain activations saves it.
- Inputs. Where some products read plain and others rounded activations, the kernel in front writes
  both (about 1 % of a layer for a long prompt), unless `ranges` has a graph for each. There are few
  such graphs, as each is compiled on its own. So a layer reads one kind of input for up to FEW
  tokens, one kind for more than MANY, and any between.
- Memory. A product with a layout of its own needs a copy of the weights.
- The host's work beyond what CUDA graphs capture. A graph calls a product without Python of ours if
  that product, with the same options, runs all of the graph's numbers of tokens.

So a set of products with one kind of input, with fewer layouts, and beyond captured graphs a single
product or one with a single change, is preferred as long as it is nowhere slower by more than GAIN
than the best one; beyond captured graphs, by some microseconds more.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve.kernels.products.product import Options

GAIN = 0.03
"""The smallest speed-up that is worth a second input, a second layout, or the host's work."""
ROUNDING = 2.5
"""Microseconds that a fused rounding adds to the kernel in front, for few tokens: a row's largest
number must be known before it is rounded, so one block has the whole row. Measured on an H200 for 8
tokens: 2.8 on average of a layer's inputs."""
FEW, MANY = 16, 128
CAPTURED = 512
"""The most tokens that vLLM captures in CUDA graphs, unless told otherwise. Beyond it, a product's
work on the host counts, too."""
SPARED = 5.0
"""Microseconds that a product may run longer where a graph then calls it without Python of ours,
which takes the host 35 at each call. Up to CHANGE tokens only: for more, the GPU takes longer than
the host on an H200 with Qwen3-8B."""
CHANGE = 2048
"""The number of tokens beyond captured graphs after which a layer may change its product. The same
for all layers: vLLM's graphs have one range to spare."""
NOISE = 0.02
"""vLLM's own product stays where ours is not faster by more than this."""


@dataclass(frozen=True)
class Candidate:
    """What is known of a product beside its times."""

    name: str
    reads_rounded: bool
    layout: str
    """Products with the same one read the same copy of the weights."""
    has_end: bool = False
    """Takes only up to some number of tokens."""


Times = Mapping[tuple[int, str, Options], float]
"""Microseconds by number of tokens, product and options."""
Best = Mapping[int, Mapping[str, tuple[float, Options]]]
"""For each number of tokens, each product's shortest time in microseconds, and its options."""


def best_times(timings: Iterable[Any], candidates: Iterable[Candidate]) -> Best:
    """The shortest time of each product, with that of rounding, from the timings of a plan."""
    extra = {one.name: ROUNDING if one.reads_rounded else 0.0 for one in candidates}
    best = dict[int, dict[str, tuple[float, Options]]]()
    for timing in timings:
        if timing.product not in extra:
            continue
        products = best.setdefault(timing.tokens, {})
        before = products.get(timing.product)
        microseconds = timing.microseconds + extra[timing.product]
        if before is None or microseconds < before[0]:
            products[timing.product] = (microseconds, timing.options)
    return best


def usable(best: Best, candidates: Iterable[Candidate], second_layout: bool) -> Best:
    """The times of the products that may be used. Without `second_layout` all of them read one copy
    of the weights: the one that is the least slower on average."""
    known = {candidate.name: candidate for candidate in candidates}
    if not second_layout:
        best = _only(best, _one_layout(best, known))
    best = _one_input(best, known)
    return _only(best, _without_dispensable(best, known))


def choices(
    best: Best, candidates: Sequence[Candidate], own: str, second_layout: bool
) -> dict[int, tuple[str, Options]]:
    """The product for each measured number of tokens, with its options. Beyond the largest, vLLM's
    own where the last one takes no more."""
    fastest: dict[int, tuple[str, Options]] = {}
    for tokens, products in sorted(usable(best, candidates, second_layout).items()):
        times = {name: products[name][0] for name in sorted(products)}
        name = min(times, key=lambda name: times[name])
        if own in times and times[own] * (1 - NOISE) <= times[name]:
            name = own
        fastest[tokens] = (name, products[name][1])
    limited = {candidate.name for candidate in candidates if candidate.has_end}
    if fastest[tokens][0] in limited:
        fastest[tokens + 1] = (own, best[tokens].get(own, (0.0, ()))[1])
    return fastest


def steady(
    chosen: Mapping[int, tuple[str, Options]], timings: Iterable[Any], traceable: Collection[str]
) -> dict[int, tuple[str, Options]]:
    """The same choice, but beyond captured graphs with one product and its options for all numbers
    of tokens, or one up to CHANGE and one beyond, where that costs little and graphs can call
    it."""
    times: Times = {(one.tokens, one.product, one.options): one.microseconds for one in timings}
    beyond = {tokens: choice for tokens, choice in chosen.items() if tokens > CAPTURED}
    few = {tokens: choice for tokens, choice in beyond.items() if tokens <= CHANGE}
    many = {tokens: choice for tokens, choice in beyond.items() if tokens > CHANGE}
    whole = _single(beyond, times, traceable)
    parts = {**_single(few, times, traceable), **_single(many, times, traceable)}
    return {**chosen, **(whole or parts)}


def _single(
    part: Mapping[int, tuple[str, Options]], times: Times, traceable: Collection[str]
) -> dict[int, tuple[str, Options]]:
    """One choice for all numbers of tokens of a part; none where each that graphs can call would be
    slower by too much for some."""

    fastest = {tokens: times.get((tokens, *choice)) for tokens, choice in part.items()}
    if None in fastest.values():  # nothing to compare with
        return {}

    def excess(choice: tuple[str, Options]) -> float:
        """The largest loss over what is allowed; infinite where it was not measured."""
        return max(
            (times.get((tokens, *choice), float("inf")) - best) / _allowed(tokens, best)
            for tokens, best in fastest.items()
            if best is not None
        )

    callable_ones = [choice for choice in dict.fromkeys(part.values()) if choice[0] in traceable]
    single = min(callable_ones, key=excess, default=None)
    return {} if single is None or excess(single) > 1.0 else dict.fromkeys(part, single)


def _allowed(tokens: int, microseconds: float) -> float:
    """By how much longer a product may run where graphs then call it directly."""
    return max(GAIN * microseconds, SPARED if tokens <= CHANGE else 0.0)


def _only(best: Best, names: set[str]) -> Best:
    return {
        tokens: {name: products[name] for name in products if name in names}
        for tokens, products in best.items()
    }


def _one_input(best: Best, known: Mapping[str, Candidate]) -> Best:
    """Only products of one kind of input, for all numbers of tokens if that costs little; else up
    to FEW, and above MANY."""
    kinds = [
        {name for name in known if known[name].reads_rounded == reads_rounded}
        for reads_rounded in (True, False)
    ]
    for names in kinds:
        if slower(best, names, set(known)) <= GAIN:
            return _only(best, names)
    kept = dict(best)
    few = {tokens: products for tokens, products in best.items() if tokens <= FEW}
    many = {tokens: products for tokens, products in best.items() if tokens > MANY}
    for part in (few, many):
        better = min(kinds, key=lambda names: slower(part, names, set(known), over=_mean))
        if part and slower(part, better, set(known)) < float("inf"):
            kept |= _only(part, better)
    return kept


def slower(
    best: Best, names: set[str], others: set[str], over: Callable[..., float] = max
) -> float:
    """By how much of their time these products are slower than others, at worst; infinite where
    none of them takes some number of tokens."""
    shares = [
        _shortest(products, names) / _shortest(products, others) - 1 for products in best.values()
    ]
    return over(shares) if shares else float("inf")


def _shortest(products: Mapping[str, tuple[float, Options]], names: set[str]) -> float:
    return min((products[name][0] for name in names & set(products)), default=float("inf"))


def _one_layout(best: Best, known: Mapping[str, Candidate]) -> set[str]:
    layouts = {candidate.layout for candidate in known.values()}
    sets = [
        {name for name, candidate in known.items() if candidate.layout == layout}
        for layout in sorted(layouts)
    ]
    return min(sets, key=lambda names: slower(best, names, set(known), over=_mean))


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares)


def _without_dispensable(best: Best, known: Mapping[str, Candidate]) -> set[str]:
    """Drops copies of the weights that gain too little, the least useful first."""
    kept = {name for products in best.values() for name in products}
    layouts = {
        layout: {name for name in kept if known[name].layout == layout}
        for layout in sorted({known[name].layout for name in kept})
    }
    needed = set(kept)
    for names in sorted(layouts.values(), key=lambda names: slower(best, kept - names, kept)):
        if slower(best, needed - names, kept) <= GAIN:
            needed -= names
    return needed
