"""What the repeats of one cell say together: middle, spread, interval, and which run stands out."""

import math
import statistics
from dataclasses import dataclass, field

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (standard tables).
STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_95 = 1.96
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
    half = student(len(kept) - 1) * deviation / math.sqrt(len(kept))
    return Summary(
        len(kept), statistics.median(kept), mean, deviation, mean - half, mean + half, strange
    )


def variance(values: list[float]) -> float:
    """Of a sample; statistics.variance reckons in fractions, twenty times as long."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


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


def student(degrees: float) -> float:
    """The 95 % quantile of Student's t; between whole degrees, the wider one."""
    whole = max(1, math.floor(degrees))
    return STUDENT_95[whole - 1] if whole <= len(STUDENT_95) else NORMAL_95 + 2.4 / whole


@dataclass
class Ratio:
    """How one cell's quantity compares with another's, as other / one."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        return not self.low <= 1 <= self.high


def compare(one: list[float], other: list[float], margin: float = 0.0) -> Ratio | None:
    """The ratio of geometric means with its 95 % interval (Welch on logarithms); none where a
    side has fewer than two runs, since nothing is known of its noise, or none to divide by.
    `margin` is how far two starts of an engine may lie apart, as logarithm, which repeats within
    one start do not show."""
    first, second = (_without_outliers(values) for values in (one, other))
    if len(first) < 2 or len(second) < 2 or min(first + second) <= 0:
        return None
    logs = [[math.log(value) for value in side] for side in (first, second)]
    difference = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    parts = [variance(side) / len(side) for side in logs]
    error = math.sqrt(sum(parts))
    half = 0.0
    if error > 0:
        squares = [part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True)]
        half = student(sum(parts) ** 2 / sum(squares)) * error
    half = math.hypot(half, margin)
    return Ratio(math.exp(difference), math.exp(difference - half), math.exp(difference + half))


def _without_outliers(values: list[float]) -> list[float]:
    strange = outliers(values)
    return [value for place, value in enumerate(values) if place not in strange]
