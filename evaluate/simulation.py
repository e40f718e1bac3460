"""`python -m evaluate.simulation`: how often comparisons are wrong, on made data of known truth.

Draws runs with noise of several kinds for setups that do not differ, and counts the draws in which
any two of them are called different: false verdicts. Then draws setups that do differ, and counts
how often that is found. Prints Markdown tables; "before" treats repeats as independent runs.
"""

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations

from conf.terminal import say
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

DRAWS = 2000
DRIFT = 0.003  # a run
SHAPE = 0.8  # of the lognormal noise
KINDS = ("normal", "lognormal", "drift", "autocorrelated 0.5", "autocorrelated 0.8")
REPEATS = (2, 3, 5)
STARTS = (1, 2, 3)
SETUPS = (2, 9)
OUTLIER_SHARE = 0.1
OUTLIER = 0.1
USAGE = "python -m evaluate.simulation [DRAWS]"

Draw = list[Sample]
Method = Callable[[Draw], list[tuple[int, int]]]


@dataclass(frozen=True)
class Case:
    """Made data: how it is drawn."""

    setups: int
    starts: int
    repeats: int
    kind: str = "normal"
    run_noise: float = 0.01
    start_noise: float = 0.01
    faster: float = 0.0
    """How much faster the second setup is, as 0.03."""
    outliers: bool = False
    """Some runs take 10 % longer; the product sets them aside where it can."""


def draw(chance: random.Random, case: Case) -> Draw:
    """Setups started in turns (A B A B), each start with its own shift, one noise over all runs.
    Autocorrelation begins anew with each start."""
    starts: list[list[Start]] = [[] for _ in range(case.setups)]
    noise = _noise(chance, case)
    place = 0
    for _ in range(case.starts):
        for setup in range(case.setups):
            shift = chance.gauss(0, case.start_noise)
            shift -= math.log1p(case.faster) if setup == 1 else 0.0
            logs = [shift + next(noise) for _ in range(case.repeats)]
            middle = place + (case.repeats - 1) / 2
            strange = outliers([math.exp(value) for value in logs])
            kept = tuple(value for at, value in enumerate(logs) if at not in strange)
            starts[setup].append(Start(kept, middle))
            place += case.repeats
    return [Sample(tuple(found)) for found in starts]


def _noise(chance: random.Random, case: Case) -> Iterator[float]:
    correlation = float(case.kind.rpartition(" ")[2]) if case.kind.startswith("auto") else 0.0
    before = 0.0
    for place in range(case.setups * case.starts * case.repeats):
        value = chance.gauss(0, 1)
        if correlation and place % case.repeats:
            value = correlation * before + math.sqrt(1 - correlation**2) * value
        before = value
        if case.kind == "lognormal":
            value = _lognormal(value)
        late = OUTLIER if case.outliers and chance.random() < OUTLIER_SHARE else 0.0
        yield case.run_noise * value + late + (DRIFT * place if case.kind == "drift" else 0.0)


def _lognormal(value: float) -> float:
    """With a long tail to the right, a mean of 0 and a deviation of 1."""
    mean = math.exp(SHAPE**2 / 2)
    deviation = mean * math.sqrt(math.exp(SHAPE**2) - 1)
    return (math.exp(SHAPE * value) - mean) / deviation


def verdicts(samples: Draw) -> list[tuple[int, int]]:
    """The pairs that are called different, by what the report uses."""
    noise = WorkloadNoise(
        starts=pooled_variance([[start.mean for start in sample.starts] for sample in samples]),
        drift=drift(samples),
        comparisons=math.comb(len(samples), 2),
    )
    found = []
    for one, other in combinations(range(len(samples)), 2):
        ratio = compare(samples[one], samples[other], noise)
        if ratio is not None and ratio.differs:
            found.append((one, other))
    return found


def verdicts_before(samples: Draw) -> list[tuple[int, int]]:
    """The same with Welch's test over all runs, as if none depended on another."""
    runs = [[log for start in sample.starts for log in start.logs] for sample in samples]
    return [
        (one, other)
        for one, other in combinations(range(len(samples)), 2)
        if _welch(runs[one], runs[other])
    ]


def _welch(one: list[float], other: list[float]) -> bool:
    parts = [variance(side) / len(side) for side in (one, other)]
    difference = abs(statistics.fmean(one) - statistics.fmean(other))
    squares = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (one, other), strict=True))
    degrees = sum(parts) ** 2 / squares if squares else 1
    return difference > quantile(0.95, degrees) * math.sqrt(sum(parts))


def false_share(case: Case, draws: int, method: Method = verdicts, seed: int = 1) -> float:
    """The share of draws with any verdict, where nothing differs."""
    chance = random.Random(f"{seed} {case}")
    return sum(bool(method(draw(chance, case))) for _ in range(draws)) / draws


def found_share(case: Case, draws: int, seed: int = 1) -> float:
    """The share of draws in which the faster setup is told from the first."""
    chance = random.Random(f"{seed} {case}")
    return sum((0, 1) in verdicts(draw(chance, case)) for _ in range(draws)) / draws


def worst(
    starts: int, setups: int, kind: str, run_noise: float, draws: int, method: Method
) -> float:
    """The largest share of false verdicts over repeats and start noise; runs that stand out come
    with as many repeats as it takes to set them aside."""
    cases = [
        Case(setups, starts, repeats, kind, run_noise, start_noise, outliers=strange)
        for repeats in REPEATS
        for start_noise in (0.0, 0.01)
        for strange in ((False, True) if repeats == max(REPEATS) else (False,))
    ]
    return max(false_share(case, draws, method) for case in cases)


def false_table(run_noise: float, draws: int, pool: Executor) -> Iterator[str]:
    """One line a kind of noise; before and after, by starts and setups."""
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
    """Many setups are many comparisons: fewer draws of them."""
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


def main(arguments: list[str]) -> None:
    if len(arguments) > 1 or not all(argument.isdigit() for argument in arguments):
        print(f"{USAGE}\n\n{__doc__}")
        sys.exit(0 if arguments in (["-h"], ["--help"]) else 2)
    draws = int(arguments[0]) if arguments else DRAWS
    with ProcessPoolExecutor() as pool:
        for run_noise in (0.01, 0.03):
            for line in false_table(run_noise, draws, pool):
                print(line, flush=True)
            print()
        for line in found_table(draws, pool):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
