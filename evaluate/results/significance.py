"""Whether two setups differ: the ratio of their times with an interval.

The unit is the start of an engine. Repeats within one start share whatever that start got: memory
layout, clocks, neighbours. So the noise of a comparison is what starts differ by. Three sources
tell it, the best that is there counts:

1. several starts of the setups under this workload (`starts=2` or more);
2. starts that were measured before, or under other workloads, on this engine and machine;
3. nothing: then stated bounds stand in for it (`STATED_...` below).

All intervals of one workload hold together at 95 %, however many setups are compared under it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from evaluate.results.student import adjusted, quantile

LEVEL = 0.96
"""A little above the 95 % that is stated, so that noise of odd shapes, and runs that are set aside,
leave less than 5 % of false verdicts in the simulation (`python -m evaluate.simulation`)."""
STATED_LEVEL = 0.95
"""For intervals that rest on stated bounds."""
STATED_START = 0.01
"""Standard deviation of starts where none was measured: most engines stay below."""
STATED_MACHINE = 0.035
"""The same for machines of one name: two cards of one kind differed by up to 7 %."""
STATED_DRIFT = 0.003
"""Most that the time may creep from one run to the next, where the runs do not show less."""
STATED_TOTAL = 0.035
"""Standard error of a ratio at most, of starts and of runs that depend on each other."""
AUTOCORRELATION = 0.8
"""Of neighbouring runs within a start, at worst."""
STATED_REPEATS = 3
"""Runs of a start that this holds for; fewer are worth less."""
BEYOND = 1.5
"""From this multiple of the widest stated interval on, only the runs themselves count."""
RUN_DEGREES = 6
"""Degrees of freedom that the bounds add to those of the runs."""
PRIOR_DEGREES = 8
"""What a stated variance counts beside a measured one."""
LEAST_DEGREES = 2
"""Of a slope that is worth anything; below, the stated drift holds."""
TYPICAL_START = 0.003
"""What starts usually differ by, to predict what a second start would decide."""


@dataclass(frozen=True)
class Start:
    """The runs of one start of an engine under one workload, by the logarithm of their times."""

    logs: tuple[float, ...]
    place: float = 0.0
    """The middle of their places among all runs of the workload, in the order of time."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.logs)

    @property
    def variance(self) -> float:
        return variance(self.logs) if len(self.logs) > 1 else 0.0


@dataclass(frozen=True)
class Sample:
    """All starts of one setup under one workload."""

    starts: tuple[Start, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(start.mean for start in self.starts)

    @property
    def runs(self) -> int:
        return sum(len(start.logs) for start in self.starts)

    @property
    def place(self) -> float:
        return statistics.fmean(start.place for start in self.starts)


def sample(values: Sequence[float]) -> Sample:
    """The runs of a single start."""
    return Sample((Start(tuple(math.log(value) for value in values)),))


@dataclass(frozen=True)
class Measured:
    """A variance that was measured, with the degrees of freedom behind it."""

    variance: float
    degrees: int


@dataclass
class WorkloadNoise:
    """What is known of the noise under one workload, and how many comparisons it has."""

    starts: Measured | None = None
    """Of starts under this workload."""
    usual: Measured | None = None
    """Of starts under other workloads, on the same engine and machine."""
    machines: Measured | None = None
    drift: float = STATED_DRIFT
    comparisons: int = 1
    """Pairs of setups under this workload."""


@dataclass
class Ratio:
    """How many times as fast, with its interval."""

    ratio: float
    low: float
    high: float
    stated: bool = False
    """Whether the interval rests on stated bounds, since no second start was measured."""
    second_start_decides: bool = field(default=False, compare=False)
    """A tie that would very likely be told with a second start of both."""

    @property
    def differs(self) -> bool:
        return not self.low <= 1 <= self.high


def variance(values: Sequence[float]) -> float:
    """Of a sample; statistics.variance reckons in fractions, twenty times as long."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def compare(
    one: Sample, other: Sample, noise: WorkloadNoise | None = None, apart: bool = False
) -> Ratio | None:
    """How many times as fast `one` is as `other`. None where a side has fewer than two runs.
    `apart`: they ran on two machines."""
    if one.runs < 2 or other.runs < 2:
        return None
    noise = noise or WorkloadNoise()
    difference = other.mean - one.mean
    half, stated = _half(one, other, noise)
    level = adjusted(STATED_LEVEL if stated else LEVEL, noise.comparisons)
    if apart:
        half = math.hypot(half, _between_machines(noise, level))
    found = Ratio(
        math.exp(difference), math.exp(difference - half), math.exp(difference + half), stated
    )
    if stated and not apart and not found.differs:
        found.second_start_decides = abs(difference) > _with_two_starts(one, other, level)
    return found


def _half(one: Sample, other: Sample, noise: WorkloadNoise) -> tuple[float, bool]:
    """Half of the interval, as logarithm, and whether it rests on stated bounds. A setup that was
    started once leans on noise that was measured elsewhere, often in few starts: it counts beside
    the stated one, and the bounds hold where it does not contradict them."""
    stated = _stated(one, other, noise, adjusted(STATED_LEVEL, noise.comparisons))
    starts = _start_noise(one, other, noise)
    if starts is None:
        return stated, True
    level = adjusted(LEVEL, noise.comparisons)
    if min(len(one.starts), len(other.starts)) > 1:
        return _measured(one, other, starts, level), False
    measured = _measured(one, other, _beside_stated(starts, STATED_START), level)
    if starts.variance <= STATED_START**2 and stated < measured:
        return stated, True
    return measured, False


def _beside_stated(measured: Measured, stated: float) -> Measured:
    """A variance of few degrees of freedom, together with the stated one."""
    degrees = measured.degrees + PRIOR_DEGREES
    total = measured.variance * measured.degrees + stated**2 * PRIOR_DEGREES
    return Measured(total / degrees, degrees)


def _start_noise(one: Sample, other: Sample, noise: WorkloadNoise) -> Measured | None:
    """What starts differ by. A workload that looks quieter than usual may be so by luck, and goes
    halfway; a pair that is clearly noisier than the rest of its workload counts by its own."""
    found = noise.usual
    if noise.starts is not None:
        found = _of_noisy_pair(one, other, noise.starts) or noise.starts
        if noise.usual is not None:
            lifted = max(found.variance, (found.variance + noise.usual.variance) / 2)
            found = Measured(lifted, found.degrees + 1)
    return found


def _of_noisy_pair(one: Sample, other: Sample, all_starts: Measured) -> Measured | None:
    if min(len(one.starts), len(other.starts)) < 2:
        return None
    pair = pooled_variance([[start.mean for start in side.starts] for side in (one, other)])
    rest = all_starts.degrees - pair.degrees if pair else 0
    if pair is None or rest < 1:
        return None
    others = max(0.0, all_starts.variance * all_starts.degrees - pair.variance * pair.degrees)
    return pair if pair.variance > quantile(0.99, rest) ** 2 * others / rest else None


def _measured(one: Sample, other: Sample, starts: Measured, level: float) -> float:
    parts = [max(starts.variance, _floor(side)) / len(side.starts) for side in (one, other)]
    return quantile(level, starts.degrees) * math.sqrt(sum(parts))


def _floor(side: Sample) -> float:
    """A single start cannot show how noisy its setup is; its runs show the least that it is."""
    (first, *more) = side.starts
    return 0.0 if more else first.variance / len(first.logs)


def pooled_variance(groups: Sequence[Sequence[float]]) -> Measured | None:
    """The variance within groups of what should be the same."""
    members = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in members)
    if not degrees:
        return None
    squares = sum((len(group) - 1) * variance(group) for group in members)
    return Measured(squares / degrees, degrees)


def _stated(one: Sample, other: Sample, noise: WorkloadNoise, level: float) -> float:
    """By stated bounds: starts that differ, runs that depend on each other, or a slow drift."""
    one_sided = 2 * level - 1 if noise.comparisons == 1 else level
    plain, dependent, degrees = _run_errors(one, other)
    starts = STATED_START * math.sqrt(sum(1 / len(side.starts) for side in (one, other)))
    runs = min(len(start.logs) for side in (one, other) for start in side.starts)
    few = math.sqrt(max(1.0, STATED_REPEATS / runs))
    by_starts, widest = quantile(level) * starts, quantile(level) * STATED_TOTAL * few
    tested = math.hypot(by_starts, quantile(level, degrees) * plain)
    between = max(
        math.hypot(by_starts, quantile(level, degrees + RUN_DEGREES) * plain),
        min(math.hypot(by_starts, quantile(level, degrees) * dependent), widest),
    )
    if tested > BEYOND * widest:  # noisier than the bounds were made for
        between = tested
    # A drift pushes one way only, so the error beside it counts on that side alone.
    beside = math.hypot(
        quantile(one_sided) * starts, quantile(one_sided, degrees + RUN_DEGREES) * plain
    )
    return max(between, beside + noise.drift * abs(one.place - other.place))


def _run_errors(one: Sample, other: Sample) -> tuple[float, float, int]:
    """What runs add to the error of the difference: if they are independent, and if each is like
    the one before it; and the degrees of freedom behind it."""
    plain = dependent = 0.0
    degrees = 0
    for side in (one, other):
        for start in side.starts:
            share = len(side.starts) ** 2
            plain += start.variance / len(start.logs) / share
            dependent += start.variance * _inflation(len(start.logs)) / share
            degrees += len(start.logs) - 1
    return math.sqrt(plain), math.sqrt(dependent), max(1, degrees)


def _inflation(runs: int) -> float:
    """The variance of a mean of autocorrelated runs, in units of the variance that they show."""
    if runs < 2:
        return 0.0
    pairs = runs * (runs - 1) / 2
    lags = sum((runs - lag) * AUTOCORRELATION**lag for lag in range(1, runs))
    shared = lags / pairs
    return (1 + (runs - 1) * shared) / runs / (1 - shared)


def _between_machines(noise: WorkloadNoise, level: float) -> float:
    stated = quantile(level) * math.sqrt(2) * STATED_MACHINE
    if noise.machines is None:
        return stated
    known = _beside_stated(noise.machines, STATED_MACHINE)
    half = quantile(level, known.degrees) * math.sqrt(2 * known.variance)
    return min(half, stated) if noise.machines.variance <= STATED_MACHINE**2 else half


def _with_two_starts(one: Sample, other: Sample, level: float) -> float:
    """Half of the interval that two starts of both would very likely give."""
    plain, _, _ = _run_errors(one, other)
    return quantile(level, 2) * math.hypot(TYPICAL_START, plain / math.sqrt(2))


def drift(samples: Sequence[Sample]) -> float:
    """The most that the time may creep from run to run: by the slope within starts, which all of
    them share, where they show it; never more than is stated."""
    across = along = squares = 0.0
    degrees = -1
    starts = [start for sample in samples for start in sample.starts if len(start.logs) > 1]
    for start in starts:
        middle = (len(start.logs) - 1) / 2
        places = [place - middle for place in range(len(start.logs))]
        across += sum(place * place for place in places)
        along += sum(
            place * (value - start.mean) for place, value in zip(places, start.logs, strict=True)
        )
        squares += start.variance * (len(start.logs) - 1)
        degrees += len(start.logs) - 1
    if degrees < LEAST_DEGREES:
        return STATED_DRIFT
    slope = along / across
    error = math.sqrt(max(0.0, squares - slope * along) / degrees / across)
    return min(STATED_DRIFT, abs(slope) + quantile(LEVEL, degrees) * error)
