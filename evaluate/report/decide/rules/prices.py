"""What tokens cost over a mix and at a capacity. `rules.js` has the same sums for the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluate.report.decide.rules.facts import EntryFacts, RateFacts, Shares, WorkloadFacts

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
MILLION = 1e6


@dataclass(frozen=True)
class Prices:
    """None is not known."""

    per_hour: float | None = None
    """Of one GPU."""
    per_kwh: float | None = None


@dataclass(frozen=True)
class TokenCost:
    """For a million output tokens, with all of the input's time and energy; or the reverse."""

    money: float | None
    joules: float | None


def mix_cost(
    workloads: Sequence[WorkloadFacts],
    shares: Shares,
    candidate: int,
    reference: int,
    prices: Prices,
    is_input: bool = False,
) -> TokenCost:
    """The cost over a mix, for output tokens or for input tokens. Each workload counts with the
    tokens that the reference, the original, makes in its share of the time; so all candidates do
    the same work."""
    tokens = gpu_seconds = joules = 0.0
    has_speed = has_energy = True
    for workload in workloads:
        own, other = workload.entry(candidate), workload.entry(reference)
        each = None if other is None else _tokens_per_output(other, is_input)
        if own is None or other is None or not own.tokens_s or not other.tokens_s or not each:
            has_speed = False
            break
        made = shares[workload.name] * other.tokens_s
        tokens += made * each
        gpu_seconds += made / own.tokens_s
        has_energy = has_energy and own.joules is not None
        joules += made * (own.joules or 0.0)
    if not has_speed or not tokens:
        return TokenCost(None, None)
    each_joules = joules / tokens if has_energy else None
    return token_cost(gpu_seconds / tokens, each_joules, prices)


def entry_cost(entry: EntryFacts, prices: Prices, is_input: bool = False) -> TokenCost:
    """The cost in one workload, for output tokens or for input tokens."""
    each = _tokens_per_output(entry, is_input)
    if not entry.tokens_s or not each:
        return TokenCost(None, None)
    joules = None if entry.joules is None else entry.joules / each
    return token_cost(1 / (entry.tokens_s * each), joules, prices)


def _tokens_per_output(entry: EntryFacts, is_input: bool) -> float | None:
    return entry.inputs_per_output if is_input else 1.0


def rate_cost(found: RateFacts, prices: Prices, is_input: bool = False) -> TokenCost:
    """The cost at a capacity, for output tokens or for input tokens."""
    tokens = found.rate * (found.input_tokens if is_input else found.output_tokens)
    if not tokens:
        return TokenCost(None, None)
    joules = found.joules_input if is_input else found.joules_output
    return token_cost(1 / tokens, joules, prices)


def counted(prices: Prices, has_energy: bool) -> Prices:
    """The prices that count: where no energy was measured at all, its price does not."""
    return prices if has_energy else replace(prices, per_kwh=None)


def token_cost(gpu_seconds: float, joules: float | None, prices: Prices) -> TokenCost:
    """The cost of a million tokens from the GPU seconds and the joules of one. Where energy
    has a price and is not known, neither is the money: tokens would look cheap."""
    money = None
    if prices.per_hour:
        money = prices.per_hour / SECONDS_PER_HOUR * gpu_seconds
    if prices.per_kwh:
        energy = None if joules is None else prices.per_kwh / JOULES_PER_KWH * joules
        money = None if energy is None else (money or 0.0) + energy
    return TokenCost(
        None if money is None else money * MILLION, None if joules is None else joules * MILLION
    )
