"""How much starts of an engine differ, and machines, which repeats within one start cannot show."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from conf.schema.load import gpus_of
from evaluate.results.cells import LEAST_RUNS, Cell, chosen_options
from evaluate.results.rows import Row
from evaluate.results.significance import (
    STATED_DRIFT,
    STATED_START,
    Measured,
    Ratio,
    Sample,
    WorkloadNoise,
    compare,
    drift,
    pooled_variance,
)

FEW = 3  # workloads; below, there is no telling what is usual
UNKNOWN = ""

Logarithms = dict[str, dict[str, list[float]]]
"""Of times, by workload and by what is the same to the engine."""


@dataclass
class NoiseEstimate:
    """What the same setup differs by from one start, or machine, to the next."""

    measured: dict[str, Measured] = field(default_factory=dict)
    """By workload: of the logarithm of the time."""
    members: int = 0
    """Starts, or machines, that tell it."""
    kinds: int = 0
    """Groups of members that are the same to the engine."""

    def words(self, between: str, members: str) -> str:
        """By how much, and how that is known."""
        workloads = len(self.measured)
        where = f"the middle of {workloads} workloads" if workloads > 1 else "one workload"
        known = f"standard deviation, {where}, {self.members} {members}"
        return f"{self.usual:.1%} {between} ({known})"

    @cached_property
    def usual(self) -> float:
        """The standard deviation in the middle of all workloads."""
        return math.sqrt(statistics.median(own.variance for own in self.measured.values()))

    @cached_property
    def _degrees(self) -> int:
        """Workloads of one start err together in part: however many they are, they are worth one
        degree of freedom more than one of them."""
        return self.members - self.kinds + int(len(self.measured) >= FEW)

    def usual_noise(self, workload: str) -> Measured | None:
        """What is usual under the other workloads. For a workload that was never started twice,
        their mean: it may be a noisy one."""
        if workload in self.measured:
            enough = len(self.measured) >= FEW
            return Measured(self.usual**2, self._degrees) if enough else None
        if not self.measured:
            return None
        mean = statistics.fmean(own.variance for own in self.measured.values())
        return Measured(mean, self._degrees)


@dataclass
class Noise:
    """What the same setup differs by from one start of an engine to the next."""

    starts: NoiseEstimate = field(default_factory=NoiseEstimate)
    """On one machine."""
    machines: NoiseEstimate = field(default_factory=NoiseEstimate)
    """On two that go by the same name."""
    drifts: dict[str, float] = field(default_factory=dict)
    """By workload: the most that times may creep from run to run."""
    pairs: dict[str, int] = field(default_factory=dict)
    """By workload: how many pairs of setups are compared."""

    def __str__(self) -> str:
        said = []
        if self.starts.members:
            said.append(self.starts.words("from start to start", "starts"))
        if self.machines.members:
            said.append(self.machines.words("between machines of the same name", "machines"))
        if not said:
            return (
                "each setup was started once: intervals allow for start noise of "
                f"{STATED_START:.0%} (standard deviation) and a drift of up to "
                f"{STATED_DRIFT:.1%} a run. starts=2 measures it instead"
            )
        return f"the same setup differs by {', and by '.join(said)}; intervals include that"

    def of(self, workload: str) -> WorkloadNoise:
        """All that is known of the noise under one workload."""
        machines = self.machines.measured.get(workload) or self.machines.usual_noise(workload)
        return WorkloadNoise(
            starts=self.starts.measured.get(workload),
            usual=self.starts.usual_noise(workload),
            machines=machines,
            drift=self.drifts.get(workload, STATED_DRIFT),
            comparisons=self.pairs.get(workload, 1),
        )


def cell_ratio(
    one: Cell, other: Cell, noise: Noise, workload: str, value: str = ""
) -> Ratio | None:
    """How many times as fast `one` is as `other`, by the time that ranks them or another value."""
    samples = [cell.sample(value or cell.ranked_by) for cell in (one, other)]
    if samples[0] is None or samples[1] is None:
        return None
    return compare(samples[0], samples[1], noise.of(workload), are_apart(one, other))


def bandwidth_of(row: Row) -> float | None:
    """What was measured of one GPU, or of the machine without one, in GB/s."""
    if row.limit.rates != "measured" or row.limit.bandwidth_gb_s is None:
        return None
    return row.limit.bandwidth_gb_s / gpus_of(row.environment.engine_options)


def machine_of(row: Row) -> str:
    """Its card; in rows that do not name it, what was measured of it once: cards of one name differ
    in it. Empty where neither is known."""
    bandwidth = bandwidth_of(row)
    measured = "" if bandwidth is None else f"{bandwidth:.5g} GB/s"
    return row.environment.card or measured or UNKNOWN


def are_apart(one: Cell, other: Cell) -> bool:
    """Whether they ran on two machines, as far as is known."""
    both = [{machine_of(row) for row in cell.valid} - {UNKNOWN} for cell in (one, other)]
    return all(both) and both[0] != both[1]


def noise_estimate(logarithms: Logarithms) -> NoiseEstimate:
    measured: dict[str, Measured] = {}
    sizes: dict[str, int] = {}
    for workload, groups in logarithms.items():
        found = pooled_variance(list(groups.values()))
        if found is not None:
            measured[workload] = found
        for kind, members in groups.items():
            if len(members) > 1:
                sizes[kind] = max(sizes.get(kind, 0), len(members))
    return NoiseEstimate(measured, members=sum(sizes.values()), kinds=len(sizes))


def noise_of(parts: list[dict[str, list[Cell]]], value: str = "") -> Noise:
    """What setups under the same workload differ by that are the same to the engine: in the time
    that ranks them, or in a value of another name. Setups of two parts are never the same."""
    starts: Logarithms = defaultdict(lambda: defaultdict(list))
    machines: Logarithms = defaultdict(lambda: defaultdict(list))
    found: dict[str, list[Sample]] = defaultdict(list)
    pairs: dict[str, int] = defaultdict(int)
    for number, part in enumerate(parts):
        for workload, members in part.items():
            for kind, twins in _twins(members, value).items():
                for machine, means in twins.items():
                    starts[workload][f"{number} {machine} {kind}"] += means
                    if machine != UNKNOWN:
                        machines[workload][f"{number} {kind}"].append(statistics.fmean(means))
            timed = [cell.sample(value or cell.ranked_by) for cell in members]
            samples = [sample for sample in timed if sample is not None]
            found[workload] += samples
            pairs[workload] = max(pairs[workload], math.comb(len(samples), 2))
    drifts = {workload: drift(samples) for workload, samples in found.items()}
    return Noise(noise_estimate(starts), noise_estimate(machines), drifts, dict(pairs))


def _twins(members: Iterable[Cell], value: str) -> dict[str, dict[str, list[float]]]:
    """The mean logarithm of each start, by what is the same to the engine and by machine."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, cell in enumerate(members):
        known = cell.row.environment.quantization_sha256 is not None
        kind = _as_the_engine_sees_it(cell) if known else str(place)
        sample = cell.sample(value or cell.ranked_by)
        if sample is None or sample.runs < LEAST_RUNS:
            continue
        for start, runs in zip(sample.starts, cell.starts(value or cell.ranked_by), strict=True):
            found[kind][machine_of(runs[0].row)].append(start.mean)
    for twins in found.values():
        machines = [machine for machine in twins if machine != UNKNOWN]
        if len(machines) == 1:  # no reason to think of another one
            twins[machines[0]] += twins.pop(UNKNOWN, [])
    return found


def _as_the_engine_sees_it(cell: Cell) -> str:
    """The same for cells whose engines, formats, sizes, options and kernels are the same, pruned
    or not: zeros run faster."""
    row, where = cell.row, cell.row.environment
    machine = [where.device, where.driver, where.power_limit_w, where.cpu, where.cores]
    weights = [where.quantization_sha256, where.weights, where.made_up, where.pruned]
    size = row.memory.weights_read_gib
    chosen = [sorted(facts.items()) for facts in (chosen_options(row), row.kernels)]
    return str([row.model, *machine, where.engine, where.versions, *weights, size, *chosen])
