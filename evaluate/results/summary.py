"""What the repeats of one cell say together: middle, spread, interval, and which run stands out."""

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
    """Runs that count."""
    median: float
    mean: float
    deviation: float
    """Standard deviation; 0 for a single run."""
    low: float
    """Lower end of the 95 % interval of the mean."""
    high: float
    """Upper end."""
    outliers: list[int] = field(default_factory=list)
    """Places of runs that stand out; they are in none of the figures."""

    @property
    def spread(self) -> float:
        """Deviation as a share of the mean."""
        return self.deviation / self.mean if self.mean else 0.0


def summarize(values: list[float], strange: list[int] | None = None) -> Summary:
    """Middle, deviation and interval of the values that do not stand out; `strange` names them
    where something else decides."""
    strange = outliers(values) if strange is None else strange
    kept = [value for place, value in enumerate(values) if place not in strange]
    mean = statistics.fmean(kept)
    if len(kept) < 2:
        return Summary(len(kept), statistics.median(kept), mean, 0.0, mean, mean, strange)
    deviation = math.sqrt(variance(kept))
    half = quantile(LEVEL, len(kept) - 1) * deviation / math.sqrt(len(kept))
    return Summary(
        len(kept), statistics.median(kept), mean, deviation, mean - half, mean + half, strange
    )


def outliers(values: list[float]) -> list[int]:
    """Places of values far from the median, in units of the median deviation; it takes four runs
    to call one of them strange, and never marks more than a third."""
    if len(values) < 4:
        return []
    middle = statistics.median(values)
    deviations = [abs(value - middle) for value in values]
    typical = statistics.median(deviations)
    limit = max(OUTLIER * typical / MAD_TO_SIGMA, CLOSE * abs(middle))
    found = [place for place, deviation in enumerate(deviations) if deviation > limit]
    return found if len(found) <= len(values) // 3 else []


def percentile(values: list[float], share: float) -> float:
    """The value below which that share lies, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
