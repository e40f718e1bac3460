"""What tokens cost at a rate: money for GPUs and energy, and joules."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from conf.schema.load import GpuConfig
from evaluate.results.rows import TrialRow

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
MILLION = 1e6


@dataclass(frozen=True)
class Cost:
    """For a million tokens. Each figure carries the whole cost: of the input and of the output."""

    currency: str
    per_million_input: float | None
    per_million_output: float | None
    joules_per_million_input: float | None
    joules_per_million_output: float | None


def cost_of(rate: float, trials: Sequence[TrialRow], gpus: int, gpu: GpuConfig) -> Cost | None:
    """The cost of tokens at a rate of requests a second, with the lengths and the power of these
    trials. None without a rate, or where neither price nor energy is known."""
    if not rate or not trials:
        return None
    inputs, outputs = (per_request(trials, name) for name in ("input_tokens", "output_tokens"))
    watts = power_w(trials)
    price = gpu.price_per_hour * gpus / SECONDS_PER_HOUR if gpu.price_per_hour else None
    if gpu.energy_price_per_kwh and watts is not None:
        price = (price or 0.0) + gpu.energy_price_per_kwh * watts / JOULES_PER_KWH
    if price is None and watts is None:
        return None
    return Cost(
        currency=gpu.currency,
        per_million_input=_for_a_million(price, rate, inputs),
        per_million_output=_for_a_million(price, rate, outputs),
        joules_per_million_input=_for_a_million(watts, rate, inputs),
        joules_per_million_output=_for_a_million(watts, rate, outputs),
    )


def _for_a_million(each_second: float | None, rate: float, tokens: float) -> float | None:
    return None if each_second is None or not tokens else each_second / (rate * tokens) * MILLION


def per_request(trials: Sequence[TrialRow], name: str) -> float:
    totals = [
        ((row.values.figure(name) or 0.0), sum(row.requests.output_tokens.values()))
        for row in trials
    ]
    means = [tokens / count for tokens, count in totals if count]
    return statistics.median(means) if means else 0.0


def power_w(trials: Sequence[TrialRow]) -> float | None:
    """Mean power of all GPUs during the trials."""
    powers = [
        row.values.energy_j / row.values.latency_s
        for row in trials
        if row.values.energy_j is not None and row.values.latency_s
    ]
    return statistics.median(powers) if powers else None
