"""What tokens cost at a capacity: money for GPUs and energy, and joules."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evaluate.report.decide.rules.prices import Prices, TokenCost, token_cost
from evaluate.results.rows import Row, SpeedRow, TrialRow

INPUT, OUTPUT = "input_tokens", "output_tokens"
UNKNOWN = TokenCost(None, None)


@dataclass(frozen=True)
class Cost:
    """For a million tokens. Each figure carries the whole cost: of the input and of the output."""

    currency: str
    per_million_input: float | None
    per_million_output: float | None
    joules_per_million_input: float | None
    joules_per_million_output: float | None


def cost_of(rate: float, trials: Sequence[TrialRow], currency: str, prices: Prices) -> Cost | None:
    """The cost of tokens at a rate of requests a second for each GPU, with the lengths and the
    energy of these trials. None without a rate, or where neither price nor energy is known."""
    if not rate or not trials:
        return None
    inputs, outputs = (_cost_of_kind(rate, trials, name, prices) for name in (INPUT, OUTPUT))
    if (inputs, outputs) == (UNKNOWN, UNKNOWN):
        return None
    return Cost(currency, inputs.money, outputs.money, inputs.joules, outputs.joules)


def _cost_of_kind(rate: float, trials: Sequence[TrialRow], name: str, prices: Prices) -> TokenCost:
    tokens = rate * per_request(trials, name)
    return token_cost(1 / tokens, joules_per_token(trials, name), prices) if tokens else UNKNOWN


def per_request(trials: Sequence[TrialRow], name: str) -> float:
    totals = [
        ((row.values.figure(name) or 0.0), sum(row.requests.output_tokens.values()))
        for row in trials
    ]
    means = [tokens / count for tokens, count in totals if count]
    return statistics.median(means) if means else 0.0


def joules_per_token(trials: Sequence[TrialRow], name: str) -> float | None:
    """What the GPUs took for each token of a kind: the energy of a whole trial, by all of its
    tokens. Power by a rate would count tokens that its end, with few requests, does not make."""
    energies = [
        row.values.energy_j / tokens
        for row in trials
        if row.values.energy_j is not None and (tokens := row.values.figure(name))
    ]
    return statistics.median(energies) if energies else None


def has_energy(rows: Sequence[Row]) -> bool:
    """Whether the energy of any valid run was measured."""
    return any(
        row.values.energy_j is not None or row.values.joules_per_output_token is not None
        for row in rows
        if isinstance(row, SpeedRow | TrialRow) and not row.invalid
    )
