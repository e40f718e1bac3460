"""Whether two setups differ: the ratio of their times with an interval.

The unit is the start of an engine. Repeats within one start share its conditions: memory layout,
clocks, neighbours. So the noise of a comparison is the noise between starts. It comes from the
best available of three sources:

1. several starts of the setups under this workload (`starts=2` or more);
2. starts that were measured before, or under other workloads, on this engine and machine;
3. stated bounds, if there are no such starts (`STATED_...` below).

All intervals of one workload hold together at 95 %, however many setups are compared under it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from evaluate.results.student import adjusted, quantile

LEVEL = 0.96
"""Slightly above the stated 95 %, so that non-normal noise and excluded outliers leave less than
5 % of false verdicts in the simulation (`python -m evaluate.simulation`)."""
STATED_LEVEL = 0.95
"""The level of intervals that use stated bounds."""
STATED_START = 0.01
"""Standard deviation of starts if none was measured; that of most engines is smaller."""
STATED_MACHINE = 0.035
"""Standard deviation of machines with one name: two cards of a model differed by up to 7 %."""
STATED_DRIFT = 0.003
"""Largest drift of the time from one run to the next, unless the runs show less."""
STATED_TOTAL = 0.035
"""Largest standard error of a ratio, from starts and autocorrelated runs."""
STATED_RUNS = 0.05
"""Largest standard deviation of the runs of one start for which the stated bounds hold."""
AUTOCORRELATION = 0.8
"""Largest correlation of neighbouring runs within a start."""
STATED_REPEATS = 3
"""Runs per start that the stated bounds assume; fewer widen the interval."""
BEYOND = 1.5
"""Above this multiple of the widest stated interval, only the measured runs count."""
RUN_DEGREES = 6
"""Degrees of freedom that the bounds add to those of the runs."""
PRIOR_DEGREES = 8
"""Weight of a stated variance beside a measured one, in degrees of freedom."""
LEAST_DEGREES = 2
"""Degrees of freedom that a measured drift needs; with fewer, the stated drift applies."""
TYPICAL_START = 0.003
"""Usual standard deviation of starts, to predict whether a second start would decide a tie."""


@dataclass(frozen=True)
class Start:
    """The runs of one start of an engine under one workload, by the logarithm of their times."""

    logs: tuple[float, ...]
    place: float = 0.0
    """The mean position of its runs among all runs of the workload, in time order."""

    @cached_property
    def mean(self) -> float:
        return statistics.fmean(self.logs)

    @cached_property
    def variance(self) -> float:
        return variance(self.logs) if len(self.logs) > 1 else 0.0


@dataclass(frozen=True)
class Sample:
    """All starts of one setup under one workload."""

    starts: tuple[Start, ...]

    @cached_property
    def mean(self) -> float:
        return statistics.fmean(start.mean for start in self.starts)

    @cached_property
    def runs(self) -> int:
        return sum(len(start.logs) for start in self.starts)

    @cached_property
    def place(self) -> float:
        return statistics.fmean(start.place for start in self.starts)


def sample(values: Sequence[float]) -> Sample:
    """The runs of a single start."""
    return Sample((Start(tuple(math.log(value) for value in values)),))


@dataclass(frozen=True)
class VarianceEstimate:
    """A measured variance with its degrees of freedom."""

    variance: float
    degrees: int


@dataclass
class WorkloadNoise:
    """The noise under one workload, and its number of comparisons."""

    starts: VarianceEstimate | None = None
    """Variance of starts under this workload."""
    usual: VarianceEstimate | None = None
    """Variance of starts under other workloads, on the same engine and machine."""
    machines: VarianceEstimate | None = None
    drift: float = STATED_DRIFT
    comparisons: int = 1
    """Pairs of setups under this workload."""
    runs: float = 0.0
    """Common standard deviation of the runs of one start."""

    @property
    def stated_start(self) -> float:
        """Standard deviation of starts if none was measured. Where runs differ more than the stated
        bounds allow, what disturbs them may last: a start that looks quiet may be a slow one."""
        return self.runs if self.runs > STATED_RUNS else STATED_START


@dataclass
class Ratio:
    """A speed-up with its confidence interval."""

    ratio: float
    low: float
    high: float
    stated: bool = False
    """Whether the interval uses stated bounds, because no second start was measured."""
    second_start_decides: bool = field(default=False, compare=False)
    """Whether a second start of both setups would very likely decide this tie."""

    @property
    def differs(self) -> bool:
        return not self.low <= 1 <= self.high


def variance(values: Sequence[float]) -> float:
    """Sample variance. statistics.variance uses fractions and takes twenty times as long."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def compare(
    one: Sample, other: Sample, noise: WorkloadNoise | None = None, apart: bool = False
) -> Ratio | None:
    """The speed-up of `one` over `other`; None if a side has fewer than two runs. `apart` means
    that they ran on two machines."""
    if one.runs < 2 or other.runs < 2:
        return None
    noise = noise or WorkloadNoise()
    difference = other.mean - one.mean
    half_width, stated = _half_width(one, other, noise)
    level = adjusted(STATED_LEVEL if stated else LEVEL, noise.comparisons)
    if apart:
        half_width = math.hypot(half_width, machine_half_width(noise, level))
    ratio = Ratio(
        math.exp(difference),
        math.exp(difference - half_width),
        math.exp(difference + half_width),
        stated,
    )
    if stated and not apart and not ratio.differs:
        two_starts = _half_width_of_two_starts(one, other, noise, level)
        ratio.second_start_decides = abs(difference) > two_starts
    return ratio


def _half_width(one: Sample, other: Sample, noise: WorkloadNoise) -> tuple[float, bool]:
    """Half of the interval's width as a logarithm, and whether it uses stated bounds. A setup with
    one start uses noise that was measured elsewhere, often from few starts. That noise is combined
    with the stated one, and the stated bounds apply unless it contradicts them."""
    stated = _stated_half_width(one, other, noise, adjusted(STATED_LEVEL, noise.comparisons))
    starts = _start_noise(one, other, noise)
    if starts is None:
        return stated, True
    level = adjusted(LEVEL, noise.comparisons)
    if min(len(one.starts), len(other.starts)) > 1:
        return _measured_half_width(one, other, starts, level), False
    measured = _measured_half_width(one, other, _combined_with_stated(starts, STATED_START), level)
    if starts.variance <= STATED_START**2 and stated < measured:
        return stated, True
    return measured, False


def _combined_with_stated(measured: VarianceEstimate, stated: float) -> VarianceEstimate:
    """The weighted mean of a measured variance of few degrees of freedom and the stated one."""
    degrees = measured.degrees + PRIOR_DEGREES
    total = measured.variance * measured.degrees + stated**2 * PRIOR_DEGREES
    return VarianceEstimate(total / degrees, degrees)


def _start_noise(one: Sample, other: Sample, noise: WorkloadNoise) -> VarianceEstimate | None:
    """The variance of starts. A workload that looks quieter than usual may do so by chance, so its
    variance is averaged with the usual one. A pair that is clearly noisier than the rest of its
    workload uses its own variance."""
    start_noise = noise.usual
    if noise.starts is not None:
        start_noise = _noisy_pair_variance(one, other, noise.starts) or noise.starts
        if noise.usual is not None:
            lifted = max(start_noise.variance, (start_noise.variance + noise.usual.variance) / 2)
            start_noise = VarianceEstimate(lifted, start_noise.degrees + 1)
    return start_noise


def _noisy_pair_variance(
    one: Sample, other: Sample, all_starts: VarianceEstimate
) -> VarianceEstimate | None:
    if min(len(one.starts), len(other.starts)) < 2:
        return None
    pair = pooled_variance([[start.mean for start in side.starts] for side in (one, other)])
    rest_degrees = all_starts.degrees - pair.degrees if pair else 0
    if pair is None or rest_degrees < 1:
        return None
    rest_squares = max(0.0, all_starts.variance * all_starts.degrees - pair.variance * pair.degrees)
    return (
        pair
        if pair.variance > quantile(0.99, rest_degrees) ** 2 * rest_squares / rest_degrees
        else None
    )


def _measured_half_width(
    one: Sample, other: Sample, starts: VarianceEstimate, level: float
) -> float:
    variances = [
        max(starts.variance, _least_variance(side)) / len(side.starts) for side in (one, other)
    ]
    return quantile(level, starts.degrees) * math.sqrt(sum(variances))


def _least_variance(side: Sample) -> float:
    """A lower bound of the variance of starts: for a single start, the variance of its mean."""
    (first, *more_starts) = side.starts
    return 0.0 if more_starts else first.variance / len(first.logs)


def pooled_variance(groups: Sequence[Sequence[float]]) -> VarianceEstimate | None:
    """The pooled variance within groups of values that should be equal."""
    members = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in members)
    if not degrees:
        return None
    squares = sum((len(group) - 1) * variance(group) for group in members)
    return VarianceEstimate(squares / degrees, degrees)


def _stated_half_width(one: Sample, other: Sample, noise: WorkloadNoise, level: float) -> float:
    """Half of the width by stated bounds on start noise, autocorrelated runs and slow drift."""
    one_sided = 2 * level - 1 if noise.comparisons == 1 else level
    independent, dependent, degrees = _run_errors(one, other)
    starts = noise.stated_start * math.sqrt(sum(1 / len(side.starts) for side in (one, other)))
    runs = min(len(start.logs) for side in (one, other) for start in side.starts)
    few_runs_factor = math.sqrt(max(1.0, STATED_REPEATS / runs))
    by_starts, widest = quantile(level) * starts, quantile(level) * STATED_TOTAL * few_runs_factor
    runs_only = math.hypot(by_starts, quantile(level, degrees) * independent)
    half_width = max(
        math.hypot(by_starts, quantile(level, degrees + RUN_DEGREES) * independent),
        min(math.hypot(by_starts, quantile(level, degrees) * dependent), widest),
    )
    if runs_only > BEYOND * widest:  # noisier than the bounds were made for
        half_width = runs_only
    # A drift has one direction, so the other errors count on one side only.
    one_sided_error = math.hypot(
        quantile(one_sided) * starts, quantile(one_sided, degrees + RUN_DEGREES) * independent
    )
    return max(half_width, one_sided_error + noise.drift * abs(one.place - other.place))


def _run_errors(one: Sample, other: Sample) -> tuple[float, float, int]:
    """The standard error that runs add to the difference: for independent runs, and for
    autocorrelated ones. Also returns the degrees of freedom."""
    independent = dependent = 0.0
    degrees = 0
    for side in (one, other):
        for start in side.starts:
            share = len(side.starts) ** 2
            independent += start.variance / len(start.logs) / share
            dependent += start.variance * _inflation(len(start.logs)) / share
            degrees += len(start.logs) - 1
    return math.sqrt(independent), math.sqrt(dependent), max(1, degrees)


@cache
def _inflation(runs: int) -> float:
    """The variance of a mean of autocorrelated runs, in units of the variance that they show."""
    if runs < 2:
        return 0.0
    pairs = runs * (runs - 1) / 2
    lags = sum((runs - lag) * AUTOCORRELATION**lag for lag in range(1, runs))
    shared = lags / pairs
    return (1 + (runs - 1) * shared) / runs / (1 - shared)


def machine_half_width(noise: WorkloadNoise, level: float = STATED_LEVEL) -> float:
    """Half of the width that the noise between two machines adds, as a logarithm."""
    stated = quantile(level) * math.sqrt(2) * STATED_MACHINE
    if noise.machines is None:
        return stated
    combined = _combined_with_stated(noise.machines, STATED_MACHINE)
    half_width = quantile(level, combined.degrees) * math.sqrt(2 * combined.variance)
    return min(half_width, stated) if noise.machines.variance <= STATED_MACHINE**2 else half_width


def _half_width_of_two_starts(
    one: Sample, other: Sample, noise: WorkloadNoise, level: float
) -> float:
    """Half of the width of the interval that two starts of both setups would very likely give."""
    independent, _, _ = _run_errors(one, other)
    starts = noise.stated_start if noise.stated_start > STATED_START else TYPICAL_START
    return quantile(level, 2) * math.hypot(starts, independent / math.sqrt(2))


def drift(samples: Sequence[Sample]) -> float:
    """The largest drift of the time from run to run: an upper bound of the common slope within
    starts, at most the stated drift."""
    place_squares = products = squares = 0.0
    degrees = -1
    starts = [start for sample in samples for start in sample.starts if len(start.logs) > 1]
    for start in starts:
        center = (len(start.logs) - 1) / 2
        places = [place - center for place in range(len(start.logs))]
        place_squares += sum(place * place for place in places)
        products += sum(
            place * (value - start.mean) for place, value in zip(places, start.logs, strict=True)
        )
        squares += start.variance * (len(start.logs) - 1)
        degrees += len(start.logs) - 1
    if degrees < LEAST_DEGREES:
        return STATED_DRIFT
    slope = products / place_squares
    error = math.sqrt(max(0.0, squares - slope * products) / degrees / place_squares)
    return min(STATED_DRIFT, abs(slope) + quantile(LEVEL, degrees) * error)
