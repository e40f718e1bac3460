"""Judges the trials of a capacity search under other targets. `rules.js` has the same rule."""

from collections.abc import Sequence
from dataclasses import replace

from evaluate.report.decide.rules.facts import Limits, RateFacts, SearchFacts, TrialFacts


def targets_of(search: SearchFacts, limits: Limits) -> tuple[float, float]:
    """TTFT and TPOT in milliseconds: the limits, and the search's own where there is none."""
    ttft = search.ttft_ms if limits.ttft_ms is None else limits.ttft_ms
    tpot = search.tpot_ms if limits.tpot_ms is None else limits.tpot_ms
    return ttft, tpot


def has_other_targets(search: SearchFacts, limits: Limits) -> bool:
    return targets_of(search, limits) != (search.ttft_ms, search.tpot_ms)


def is_judged_again(search: SearchFacts, limits: Limits) -> bool:
    """Whether the limits are other targets than those of the search, and all of its trials can be
    judged under them."""
    has_trials = bool(search.rates) and all(found.trials for found in search.rates)
    return has_trials and has_other_targets(search, limits)


def judged_search(search: SearchFacts, limits: Limits) -> SearchFacts:
    """The search as its trials are under these targets, the highest rate first. The search itself
    where they are its own."""
    if not is_judged_again(search, limits):
        return search
    ttft_ms, tpot_ms = targets_of(search, limits)
    rates = [_judged_rate(found, ttft_ms, tpot_ms) for found in search.rates]
    rates = [replace(found, above=_above(found, rates, search.noise)) for found in rates]
    return replace(search, rates=sorted(rates, key=lambda found: -found.rate))


def _judged_rate(found: RateFacts, ttft_ms: float, tpot_ms: float) -> RateFacts:
    """The energy at another rate is not known."""
    low, high = rates_between(found.trials, ttft_ms, tpot_ms)
    return replace(found, rate=low, low=low, high=high, joules_input=None, joules_output=None)


def rates_between(
    trials: Sequence[TrialFacts], ttft_ms: float, tpot_ms: float
) -> tuple[float, float | None]:
    """The highest rate that meets the targets below the lowest that misses them, as in a search.
    The first is 0 where none is known to meet them, the second None where none is known to miss
    them."""
    missed = [trial.rate for trial in trials if late(trial, ttft_ms, tpot_ms) > trial.allowed]
    high = min(missed, default=None)
    met = [
        trial.rate
        for trial in trials
        if trial.whole
        and late(trial, ttft_ms, tpot_ms) <= trial.allowed
        and (high is None or trial.rate < high)
    ]
    return max(met, default=0.0), high


def late(trial: TrialFacts, ttft_ms: float, tpot_ms: float) -> int:
    """How many of the stored requests miss the targets: all that do, or more than are allowed."""
    return trial.failed + sum(ttft > ttft_ms or tpot > tpot_ms for ttft, tpot in trial.slowest)


def _above(found: RateFacts, rates: Sequence[RateFacts], noise: float) -> list[int]:
    """The candidates that miss the targets at a rate which is lower by more than noise."""
    return [
        other.candidate
        for other in rates
        if other.high is not None and found.rate > other.high * noise
    ]
