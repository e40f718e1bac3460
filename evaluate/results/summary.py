"""Summary of the repeats of one cell: median, spread, confidence interval and outliers."""

import math
import statistics
from dataclasses import dataclass, field

from evaluate.results.significance import variance
from evaluate.results.student import quantile

LEVEL = 0.95
PERCENT_99 = 0.99

OUTLIER = 3.5  # modified z-score, by Iglewicz and Hoaglin
MAD_TO_SIGMA = 0.6745
CLOSE = 0.02  # runs within this share of the median are never outliers, however tight the rest


@dataclass
class Summary:
    """The repeats of one quantity."""

    runs: int
    """Runs without outliers."""
    median: float
    mean: float
    deviation: float
    """Standard deviation; 0 for a single run."""
    low: float
    """Lower end of the 95 % interval of the mean."""
    high: float
    """Upper end."""
    outliers: list[int] = field(default_factory=list)
    """Positions of outliers, which are excluded from all figures."""

    @property
    def spread(self) -> float:
        """Deviation as a share of the mean."""
        return self.deviation / self.mean if self.mean else 0.0


def summarize(values: list[float], excluded: list[int] | None = None) -> Summary:
    """The summary of the values without outliers. `excluded` gives the positions of the outliers
    if the caller decides them."""
    excluded = outliers(values) if excluded is None else excluded
    included = [value for place, value in enumerate(values) if place not in excluded]
    mean = statistics.fmean(included)
    if len(included) < 2:
        return Summary(len(included), statistics.median(included), mean, 0.0, mean, mean, excluded)
    deviation = math.sqrt(variance(included))
    half_width = quantile(LEVEL, len(included) - 1) * deviation / math.sqrt(len(included))
    return Summary(
        len(included),
        statistics.median(included),
        mean,
        deviation,
        mean - half_width,
        mean + half_width,
        excluded,
    )


def outliers(values: list[float]) -> list[int]:
    """Positions of values far from the median, in units of the median deviation. Needs at least
    four values, and never marks more than a third of them."""
    if len(values) < 4:
        return []
    median = statistics.median(values)
    deviations = [abs(value - median) for value in values]
    typical = statistics.median(deviations)
    limit = max(OUTLIER * typical / MAD_TO_SIGMA, CLOSE * abs(median))
    places = [place for place, deviation in enumerate(deviations) if deviation > limit]
    return places if len(places) <= len(values) // 3 else []


def percentile(values: list[float], share: float) -> float:
    """The value below which that share lies, linearly interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
