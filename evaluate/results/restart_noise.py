"""The noise between engine starts and between machines, which repeats in one start cannot show."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from conf.schema.load import gpus_of
from conf.terminal import listed
from evaluate.results.cells import LEAST_RUNS, Cell, chosen_options
from evaluate.results.rows import Row
from evaluate.results.significance import (
    STATED_DRIFT,
    STATED_START,
    Ratio,
    Sample,
    VarianceEstimate,
    WorkloadNoise,
    compare,
    drift,
    pooled_variance,
)

FEW = 3  # workloads; fewer do not show what is usual
LEAST_SETUPS = 3
CALM_SHARE = 0.75  # of the setups; the others reach the common deviation
UNKNOWN = ""

Logarithms = dict[str, dict[str, list[float]]]
"""Logarithms of times, by workload and by engine identity."""


@dataclass
class NoiseEstimate:
    """How much the same setup differs from one start, or machine, to the next."""

    measured: dict[str, VarianceEstimate] = field(default_factory=dict)
    """By workload: the variance of the logarithm of the time."""
    members: int = 0
    """Starts, or machines, behind the estimate."""
    kinds: int = 0
    """Groups of members that are the same to the engine."""

    def description(self, between: str, members: str) -> str:
        """The standard deviation, and what it was estimated from."""
        workloads = len(self.measured)
        scope = f"the middle of {workloads} workloads" if workloads > 1 else "one workload"
        basis = f"standard deviation, {scope}, {self.members} {members}"
        return f"{self.usual:.1%} {between} ({basis})"

    @cached_property
    def usual(self) -> float:
        """The median standard deviation over all workloads."""
        return math.sqrt(
            statistics.median(estimate.variance for estimate in self.measured.values())
        )

    @cached_property
    def _degrees(self) -> int:
        """Degrees of freedom. The errors of workloads of one start are correlated, so several
        workloads add only one degree to those of a single workload."""
        return self.members - self.kinds + int(len(self.measured) >= FEW)

    def usual_noise(self, workload: str) -> VarianceEstimate | None:
        """The usual variance under the other workloads. For a workload without a second start it
        is their mean, since that workload may be a noisy one."""
        if workload in self.measured:
            enough = len(self.measured) >= FEW
            return VarianceEstimate(self.usual**2, self._degrees) if enough else None
        if not self.measured:
            return None
        mean = statistics.fmean(estimate.variance for estimate in self.measured.values())
        return VarianceEstimate(mean, self._degrees)


@dataclass
class Noise:
    """All noise estimates of a set of results."""

    starts: NoiseEstimate = field(default_factory=NoiseEstimate)
    """Between starts on one machine."""
    machines: NoiseEstimate = field(default_factory=NoiseEstimate)
    """Between machines with the same device name."""
    drifts: dict[str, float] = field(default_factory=dict)
    """By workload: the largest drift of times from run to run."""
    pairs: dict[str, int] = field(default_factory=dict)
    """By workload: how many pairs of setups are compared."""
    runs: dict[str, float] = field(default_factory=dict)
    """By workload: the common standard deviation of the runs of one start."""

    def __str__(self) -> str:
        estimates = []
        if self.starts.members:
            estimates.append(self.starts.description("from start to start", "starts"))
        if self.machines.members:
            estimates.append(
                self.machines.description("between machines of the same name", "machines")
            )
        if not estimates:
            return (
                "each setup was started once: intervals allow for start noise of "
                f"{STATED_START:.0%} (standard deviation{self._restless}) and a drift of up to "
                f"{STATED_DRIFT:.1%} a run. starts=2 measures it instead"
            )
        return f"the same setup differs by {', and by '.join(estimates)}; intervals include that"

    @property
    def _restless(self) -> str:
        """The workloads whose runs differ more than the stated bounds allow."""
        noises = {workload: self.of(workload).stated_start for workload in self.runs}
        most = {name: noise for name, noise in noises.items() if noise > STATED_START}
        if not most:
            return ""
        largest = f"{max(most.values()):.0%}"
        return f"; up to {largest} in {listed(list(most))}, where runs of one start differ as much"

    def of(self, workload: str) -> WorkloadNoise:
        """The noise under one workload."""
        machines = self.machines.measured.get(workload) or self.machines.usual_noise(workload)
        return WorkloadNoise(
            starts=self.starts.measured.get(workload),
            usual=self.starts.usual_noise(workload),
            machines=machines,
            drift=self.drifts.get(workload, STATED_DRIFT),
            comparisons=self.pairs.get(workload, 1),
            runs=self.runs.get(workload, 0.0),
        )


def cell_ratio(
    one: Cell, other: Cell, noise: Noise, workload: str, value: str = ""
) -> Ratio | None:
    """The speed-up of `one` over `other`, by the time that ranks them or by the named value."""
    samples = [cell.sample(value or cell.ranked_by) for cell in (one, other)]
    if samples[0] is None or samples[1] is None:
        return None
    return compare(samples[0], samples[1], noise.of(workload), ran_on_two_machines(one, other))


def bandwidth_of(row: Row) -> float | None:
    """The measured memory bandwidth of one GPU, or of a machine without a GPU, in GB/s."""
    if row.limit.rates != "measured" or row.limit.bandwidth_gb_s is None:
        return None
    return row.limit.bandwidth_gb_s / gpus_of(row.environment.engine_options)


def machine_of(row: Row) -> str:
    """The GPU's identity. Rows without one are identified by the measured bandwidth, which differs
    between cards of the same name. Empty if neither is known."""
    bandwidth = bandwidth_of(row)
    measured = "" if bandwidth is None else f"{bandwidth:.5g} GB/s"
    return row.environment.card or measured or UNKNOWN


def machines_of(cell: Cell) -> set[str]:
    """The known machines that a cell ran on."""
    return {machine_of(row) for row in cell.valid} - {UNKNOWN}


def ran_on_two_machines(one: Cell, other: Cell) -> bool:
    """Whether the two cells are known to have run on different machines."""
    known_machines = [machines_of(cell) for cell in (one, other)]
    return all(known_machines) and known_machines[0] != known_machines[1]


def noise_estimate(logarithms: Logarithms) -> NoiseEstimate:
    measured: dict[str, VarianceEstimate] = {}
    sizes: dict[str, int] = {}
    for workload, groups in logarithms.items():
        variance = pooled_variance(list(groups.values()))
        if variance is not None:
            measured[workload] = variance
        for kind, members in groups.items():
            if len(members) > 1:
                sizes[kind] = max(sizes.get(kind, 0), len(members))
    return NoiseEstimate(measured, members=sum(sizes.values()), kinds=len(sizes))


def noise_of(groups: list[dict[str, list[Cell]]], value: str = "") -> Noise:
    """The noise between setups that are identical to the engine, by workload. It is the noise of
    the time that ranks them, or of the named value. Setups of two groups are never identical."""
    starts: Logarithms = defaultdict(lambda: defaultdict(list))
    machines: Logarithms = defaultdict(lambda: defaultdict(list))
    samples_by_workload: dict[str, list[Sample]] = defaultdict(list)
    pairs: dict[str, int] = defaultdict(int)
    for number, group in enumerate(groups):
        for workload, members in group.items():
            for kind, means_by_machine in _means_of_identical_setups(members, value).items():
                for machine, means in means_by_machine.items():
                    starts[workload][f"{number} {machine} {kind}"] += means
                    if machine != UNKNOWN:
                        machines[workload][f"{number} {kind}"].append(statistics.fmean(means))
            timed = [cell.sample(value or cell.ranked_by) for cell in members]
            samples = [sample for sample in timed if sample is not None]
            samples_by_workload[workload] += samples
            pairs[workload] = max(pairs[workload], math.comb(len(samples), 2))
    drifts = {workload: drift(samples) for workload, samples in samples_by_workload.items()}
    return Noise(
        noise_estimate(starts),
        noise_estimate(machines),
        drifts,
        dict(pairs),
        {workload: _common_deviation(samples) for workload, samples in samples_by_workload.items()},
    )


def _common_deviation(samples: list[Sample]) -> float:
    """The standard deviation of the runs of one start that a quarter of the setups reach, and at
    least two: a single restless setup does not make the others so. Fewer than three setups cannot
    show that, and their mean variance counts."""
    pooled = [pooled_variance([start.logs for start in sample.starts]) for sample in samples]
    variances = sorted(estimate.variance for estimate in pooled if estimate is not None)
    if not variances:
        return 0.0
    if len(variances) < LEAST_SETUPS:
        return math.sqrt(statistics.fmean(variances))
    return math.sqrt(variances[int((len(variances) - 1) * CALM_SHARE)])


def _means_of_identical_setups(
    members: Iterable[Cell], value: str
) -> dict[str, dict[str, list[float]]]:
    """The mean logarithm of each start, by engine identity and by machine."""
    means_by_kind: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, cell in enumerate(members):
        has_config = cell.row.environment.quantization_sha256 is not None
        kind = _engine_identity(cell) if has_config else str(number)
        sample = cell.sample(value or cell.ranked_by)
        if sample is None or sample.runs < LEAST_RUNS:
            continue
        for start, runs in zip(sample.starts, cell.starts(value or cell.ranked_by), strict=True):
            means_by_kind[kind][machine_of(runs[0].row)].append(start.mean)
    for means_by_machine in means_by_kind.values():
        machines = [machine for machine in means_by_machine if machine != UNKNOWN]
        if len(machines) == 1:  # starts without a known machine ran there as well
            means_by_machine[machines[0]] += means_by_machine.pop(UNKNOWN, [])
    return means_by_kind


def _engine_identity(cell: Cell) -> str:
    """Equal for cells with the same engine, format, size, options and kernels. Pruned weights
    differ from dense ones, because zeros run faster."""
    row, environment = cell.row, cell.row.environment
    machine = [
        environment.device,
        environment.driver,
        environment.power_limit_w,
        environment.cpu,
        environment.cores,
    ]
    weights = [
        environment.quantization_sha256,
        environment.weights,
        environment.made_up,
        environment.pruned,
    ]
    size = row.memory.weights_read_gib
    chosen = [sorted(facts.items()) for facts in (chosen_options(row), row.kernels)]
    return str(
        [row.model, *machine, environment.engine, environment.versions, *weights, size, *chosen]
    )
