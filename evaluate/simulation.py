"""`python -m evaluate.simulation`: how often comparisons are wrong, on simulated data.

Draws runs with several kinds of noise for setups that do not differ, and counts the draws in which
any two of them are called different: false verdicts. Then draws setups that do differ, and counts
how often the difference is found. Prints Markdown tables; "before" treats repeats as independent.
The last table has the false verdicts over a mix of workloads.
"""

import math
import random
import re
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations

from conf.app import run_plain
from conf.errors import bad_input
from conf.terminal import say
from evaluate.report.decide.rules.facts import EntryFacts, WorkloadFacts
from evaluate.report.decide.rules.pick import mix_ratio
from evaluate.results.significance import (
    Sample,
    Start,
    WorkloadNoise,
    compare,
    drift,
    pooled_variance,
    variance,
)
from evaluate.results.student import quantile
from evaluate.results.summary import outliers

DRAWS, MOST_DRAWS = 2000, 10**6
DRIFT = 0.003  # per run
SHAPE = 0.8  # of the lognormal noise
KINDS = ("normal", "lognormal", "drift", "autocorrelated 0.5", "autocorrelated 0.8")
REPEATS = (2, 3, 5)
STARTS = (1, 2, 3)
SETUPS = (2, 9)
WORKLOADS = 7  # of a mix, as many as standard scenarios
OUTLIER_SHARE = 0.1
OUTLIER = 0.1
USAGE = "python -m evaluate.simulation [DRAWS]"

Draw = list[Sample]
Method = Callable[[Draw], list[tuple[int, int]]]


@dataclass(frozen=True)
class Case:
    """The parameters of simulated data."""

    setups: int
    starts: int
    repeats: int
    kind: str = "normal"
    run_noise: float = 0.01
    start_noise: float = 0.01
    faster: float = 0.0
    """How much faster the second setup is: 0.03 for 3 %."""
    outliers: bool = False
    """Whether some runs take 10 % longer; they are excluded if they are recognized as outliers."""


def draw(generator: random.Random, case: Case, shifts: Sequence[float] | None = None) -> Draw:
    """Draws setups that are started in turns (A B A B). Each start has its own shift, or the given
    one; one noise process covers all runs. Autocorrelation restarts with each start."""
    starts: list[list[Start]] = [[] for _ in range(case.setups)]
    noise = _noise(generator, case)
    place = 0
    for number in range(case.starts):
        for setup in range(case.setups):
            given = None if shifts is None else shifts[number * case.setups + setup]
            shift = generator.gauss(0, case.start_noise) if given is None else given
            shift -= math.log1p(case.faster) if setup == 1 else 0.0
            logs = [shift + next(noise) for _ in range(case.repeats)]
            mean_place = place + (case.repeats - 1) / 2
            excluded = outliers([math.exp(value) for value in logs])
            included = tuple(
                value for position, value in enumerate(logs) if position not in excluded
            )
            starts[setup].append(Start(included, mean_place))
            place += case.repeats
    return [Sample(tuple(setup_starts)) for setup_starts in starts]


def _noise(generator: random.Random, case: Case) -> Iterator[float]:
    correlation = float(case.kind.rpartition(" ")[2]) if case.kind.startswith("auto") else 0.0
    previous = 0.0
    for place in range(case.setups * case.starts * case.repeats):
        value = generator.gauss(0, 1)
        if correlation and place % case.repeats:
            value = correlation * previous + math.sqrt(1 - correlation**2) * value
        previous = value
        if case.kind == "lognormal":
            value = _lognormal(value)
        outlier = OUTLIER if case.outliers and generator.random() < OUTLIER_SHARE else 0.0
        yield case.run_noise * value + outlier + (DRIFT * place if case.kind == "drift" else 0.0)


def _lognormal(value: float) -> float:
    """Lognormal noise with a long right tail, a mean of 0 and a standard deviation of 1."""
    mean = math.exp(SHAPE**2 / 2)
    deviation = mean * math.sqrt(math.exp(SHAPE**2) - 1)
    return (math.exp(SHAPE * value) - mean) / deviation


def _noise_of(samples: Draw) -> WorkloadNoise:
    return WorkloadNoise(
        starts=pooled_variance([[start.mean for start in sample.starts] for sample in samples]),
        drift=drift(samples),
        comparisons=math.comb(len(samples), 2),
    )


def verdicts(samples: Draw) -> list[tuple[int, int]]:
    """The pairs that differ significantly, by the report's method."""
    noise = _noise_of(samples)
    different = []
    for one, other in combinations(range(len(samples)), 2):
        ratio = compare(samples[one], samples[other], noise)
        if ratio is not None and ratio.differs:
            different.append((one, other))
    return different


def mix_verdicts(draws: Sequence[Draw]) -> list[tuple[int, int]]:
    """The pairs that differ significantly over a mix: one draw for each of its workloads."""
    workloads = [_facts(str(place), samples) for place, samples in enumerate(draws)]
    shares = {workload.name: 1 / len(workloads) for workload in workloads}
    different = []
    for one, other in combinations(range(len(draws[0])), 2):
        ratio = mix_ratio(workloads, shares, one, other, 0)
        if ratio is not None and ratio.differs:
            different.append((one, other))
    return different


def _facts(name: str, samples: Draw) -> WorkloadFacts:
    """What the rule for mixes reads of a workload."""
    noise = _noise_of(samples)
    times = [math.exp(sample.mean) for sample in samples]
    entries = [
        EntryFacts(place, time, time, None, None, None, None, None, None)
        for place, time in enumerate(times)
    ]
    ratios = [compare(one, other, noise) for one, other in combinations(samples, 2)]
    factors = [None if ratio is None else ratio.high / ratio.ratio for ratio in ratios]
    return WorkloadFacts(name, True, entries, factors, [])


def verdicts_before(samples: Draw) -> list[tuple[int, int]]:
    """The same by Welch's test over all runs, as if they were independent."""
    runs = [[log for start in sample.starts for log in start.logs] for sample in samples]
    return [
        (one, other)
        for one, other in combinations(range(len(samples)), 2)
        if _welch(runs[one], runs[other])
    ]


def _welch(one: list[float], other: list[float]) -> bool:
    squared_errors = [variance(side) / len(side) for side in (one, other)]
    difference = abs(statistics.fmean(one) - statistics.fmean(other))
    squares = sum(
        squared_error**2 / (len(side) - 1)
        for squared_error, side in zip(squared_errors, (one, other), strict=True)
    )
    degrees = sum(squared_errors) ** 2 / squares if squares else 1
    return difference > quantile(0.95, degrees) * math.sqrt(sum(squared_errors))


def false_share(case: Case, draws: int, method: Method = verdicts, seed: int = 1) -> float:
    """The share of draws with a false verdict, for setups that do not differ."""
    generator = random.Random(f"{seed} {case}")
    return sum(bool(method(draw(generator, case))) for _ in range(draws)) / draws


def false_mix_share(case: Case, draws: int, shares_starts: bool, seed: int = 1) -> float:
    """The share of draws with a false verdict over a mix. Either a start is as much slower or
    faster in all workloads, or in each by chance."""
    generator = random.Random(f"{seed} {case} {shares_starts}")
    count = 0
    for _ in range(draws):
        starts = range(case.starts * case.setups)
        shifts = [generator.gauss(0, case.start_noise) for _ in starts] if shares_starts else None
        count += bool(mix_verdicts([draw(generator, case, shifts) for _ in range(WORKLOADS)]))
    return count / draws


def found_share(case: Case, draws: int, seed: int = 1) -> float:
    """The share of draws in which the faster setup differs significantly from the first."""
    generator = random.Random(f"{seed} {case}")
    return sum((0, 1) in verdicts(draw(generator, case)) for _ in range(draws)) / draws


def worst(
    starts: int, setups: int, kind: str, run_noise: float, draws: int, method: Method
) -> float:
    """The largest share of false verdicts over repeats and start noise. Outliers are simulated
    only with enough repeats to recognize them."""
    cases = [
        Case(setups, starts, repeats, kind, run_noise, start_noise, outliers=has_outliers)
        for repeats in REPEATS
        for start_noise in (0.0, 0.01)
        for has_outliers in ((False, True) if repeats == max(REPEATS) else (False,))
    ]
    return max(false_share(case, draws, method) for case in cases)


def worst_mix(starts: int, kind: str, run_noise: float, draws: int) -> float:
    """The largest share of false verdicts over mixes: over repeats, and over starts that are
    slow in all workloads or in each by chance."""
    return max(
        false_mix_share(Case(2, starts, repeats, kind, run_noise), draws, shares_starts)
        for repeats in REPEATS
        for shares_starts in (True, False)
    )


def mix_table(draws: int, pool: Executor) -> Iterator[str]:
    """False verdicts over a mix, one line per kind of noise."""
    columns = [(starts, run_noise) for run_noise in (0.01, 0.03) for starts in STARTS]
    cells = {
        (kind, *column): pool.submit(worst_mix, column[0], kind, column[1], max(1, draws // 4))
        for kind in KINDS
        for column in columns
    }
    yield f"False verdicts on two setups over a mix of {WORKLOADS} workloads:\n"
    heads = [f"starts={starts}, {run_noise:.0%} run noise" for starts, run_noise in columns]
    yield "| noise | " + " | ".join(heads) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for kind in KINDS:
        shares = [f"{cells[kind, *column].result():.1%}" for column in columns]
        yield f"| {kind} | " + " | ".join(shares) + " |"


def false_table(run_noise: float, draws: int, pool: Executor) -> Iterator[str]:
    """One line per kind of noise: before and after, by starts and setups."""
    columns = [(starts, setups) for starts in STARTS for setups in SETUPS]
    heads = [f"starts={starts}, {setups} setups" for starts, setups in columns]
    cells = {
        (kind, *column, method): pool.submit(
            worst, *column, kind, run_noise, _draws(column[1], draws), method
        )
        for kind in KINDS
        for column in columns
        for method in (verdicts_before, verdicts)
    }
    yield f"False verdicts at {run_noise:.0%} run noise, worst of all repeats (before → after):\n"
    yield "| noise | " + " | ".join(heads) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for kind in KINDS:
        line = []
        for column in columns:
            shares = [cells[kind, *column, m].result() for m in (verdicts_before, verdicts)]
            line.append(f"{shares[0]:.1%} → {shares[1]:.1%}")
            say(f"{kind}, starts={column[0]}, {column[1]} setups: {line[-1]}")
        yield f"| {kind} | " + " | ".join(line) + " |"


def _draws(setups: int, draws: int) -> int:
    """The number of draws; fewer for many setups, which have many comparisons."""
    return draws if setups == SETUPS[0] else max(200, draws // 4)


def found_table(draws: int, pool: Executor) -> Iterator[str]:
    """How often a true difference is found."""
    yield "| setups | starts | repeats | run noise | start noise | true difference | found |"
    yield "|---|---|---|---|---|---|---|"
    cases = [Case(2, 1, 3, run_noise=0.03, start_noise=0.0, faster=0.1)]
    cases += [
        Case(setups, starts, repeats, start_noise=0.003, faster=0.03)
        for setups in SETUPS
        for starts in STARTS
        for repeats in REPEATS
    ]
    shares = pool.map(found_share, cases, [_draws(case.setups, draws) for case in cases])
    for case, share in zip(cases, shares, strict=True):
        yield (
            f"| {case.setups} | {case.starts} | {case.repeats} | {case.run_noise:.0%} | "
            f"{case.start_noise:.1%} | {case.faster:.0%} | {share:.0%} |"
        )


def _end_on_interrupt() -> None:
    """Ctrl-C reaches the whole group of processes: only the first one says so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_count(argument: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", argument) is not None and 1 <= int(argument) <= MOST_DRAWS


def main(arguments: list[str]) -> None:
    if len(arguments) > 1 or not all(_is_count(argument) for argument in arguments):
        raise bad_input(f"{' '.join(arguments)}: write {USAGE}, with 1 to {MOST_DRAWS} draws")
    draws = int(arguments[0]) if arguments else DRAWS
    with ProcessPoolExecutor(initializer=_end_on_interrupt) as pool:
        for run_noise in (0.01, 0.03):
            for line in false_table(run_noise, draws, pool):
                print(line, flush=True)
            print()
        for line in found_table(draws, pool):
            print(line, flush=True)
        print()
        for line in mix_table(draws, pool):
            print(line, flush=True)


if __name__ == "__main__":
    run_plain(f"{USAGE}\n\n{__doc__}", main)
