"""The search for the highest rate that meets the targets: growing steps, then bisection.

Pure: the next rate follows from the trials so far, so that an interrupted search goes on from the
rows of its trials.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

DOUBLING = 2.0
NEAR = 4.0  # steps of a search that knows where to begin, in units of its resolution
MOST_TRIALS = 40
ROUNDING = 1e-6  # rows keep seven digits of a rate
CURVE_FROM = 1 / 8  # of the found rate: a few requests are together there
LOWEST = 1 / 256  # of the highest rate: requests are alone there, and a lower one gains nothing


class Limit(Enum):
    """What limits a rate: what the requests missed that are not in time. A request counts once; one
    that failed missed nothing else."""

    FIRST_TOKEN = "TTFT"
    FURTHER_TOKENS = "TPOT"
    FAILURES = "failures"


@dataclass(frozen=True)
class Trial:
    """One rate that was tried."""

    rate: float
    meets: bool
    """Whether enough requests met the targets."""
    of_curve: bool = False
    """Whether it was made for the curve of a search that had ended: it decides nothing."""


@dataclass(frozen=True)
class Found:
    """Where a search ended: the targets are met at `low`, and missed at `high`."""

    low: float
    """0 where no rate meets them."""
    high: float

    @property
    def rate(self) -> float:
        """The best estimate between both: their geometric mean."""
        return math.sqrt(self.low * self.high)


@dataclass(frozen=True)
class Begin:
    """Where a search begins."""

    rate: float
    is_near: bool
    """Whether it is near the end, by what is known of the server: then steps are small at first."""


def next_rate(trials: Sequence[Trial], resolution: float, begin: Begin) -> float | None:
    """The rate of the next trial; None when the search has ended."""
    trials = _of_search(trials)
    if not trials:
        return begin.rate
    factor = 1 + NEAR * resolution if begin.is_near else DOUBLING
    if len(trials) >= MOST_TRIALS:
        return None
    low, high = bracket(trials)
    if high is None:
        assert low is not None
        return low * _growing(factor, trials)
    if low is None:
        lower = high / _growing(factor, trials)
        return lower if lower >= LOWEST * _highest(trials) else None
    return math.sqrt(low * high) if high / low > 1 + resolution else None


def _growing(factor: float, trials: Sequence[Trial]) -> float:
    """Steps in one direction grow: the first rate may be wrong by far."""
    return float(min(DOUBLING, factor ** len(trials)))


def _highest(trials: Sequence[Trial]) -> float:
    return max(trial.rate for trial in trials)


def bracket(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    """The highest rate that met the targets below the lowest that missed them. A rate that met them
    above one that missed them did so by chance."""
    trials = _of_search(trials)
    high = min((trial.rate for trial in trials if not trial.meets), default=None)
    good = [trial.rate for trial in trials if trial.meets and (high is None or trial.rate < high)]
    return max(good, default=None), high


def found(trials: Sequence[Trial], resolution: float) -> Found | None:
    """The end of a search; None while it is not decided."""
    trials = _of_search(trials)
    low, high = bracket(trials)
    if high is None or not trials:
        return None
    if low is None:
        return Found(0.0, high) if high <= 2 * LOWEST * _highest(trials) else None
    return Found(low, high) if high / low <= (1 + resolution) * (1 + ROUNDING) else None


def missing_curve(trials: Sequence[Trial], resolution: float, count: int) -> list[float]:
    """The rates of a curve that were not tried: so many, evenly spaced from a share of the found
    rate up to it, without that rate itself. None where the search has not ended, or found none."""
    end = found(trials, resolution)
    if end is None or not end.low:
        return []
    tried = [trial.rate for trial in trials if trial.of_curve]
    rates = [end.rate * (CURVE_FROM + (1 - CURVE_FROM) * place / count) for place in range(count)]
    return [rate for rate in rates if not any(_is_same(rate, other) for other in tried)]


def _is_same(rate: float, other: float) -> bool:
    """Whether two rates are the same, as rows keep them."""
    return math.isclose(rate, other, rel_tol=10 * ROUNDING)


def _of_search(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if not trial.of_curve]
