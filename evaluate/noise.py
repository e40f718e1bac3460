"""How much starts of an engine differ, and machines, which repeats within one start cannot show."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from conf.models import MADE_UP
from evaluate.cells import LEAST_RUNS, Cell, chosen_options
from evaluate.gpu_watch import CARD
from evaluate.results import Row
from evaluate.summary import student, variance
from serve.engine import gpus_of

FEW = 3  # loads; below, there is no telling what is usual
FORMAT = "quantization_sha256"
STATED = (
    *("device", "driver", "power_limit_w", "cpu", "cores", "engine", "versions"),
    *(FORMAT, "weights", MADE_UP, "pruned"),
)
BANDWIDTH = "bandwidth_gb_s"
UNKNOWN = ""
MACHINES_UNKNOWN = "how much machines of one name differ was not measured"

Logarithms = dict[str, dict[str, list[float]]]
"""Of times, by load and by what is the same to the engine."""


@dataclass
class Spread:
    """Learned from what should be the same: whatever it differs by is noise. Loads differ in it,
    and each knows its own from a few starts only: halfway between that and what is usual is the
    better guess."""

    variances: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By load: of the logarithm of latency, and the degrees of freedom behind it."""
    members: int = 0
    """How many there were."""
    kinds: int = 0
    """Of members that are the same."""

    def words(self, between: str, members: str) -> str:
        """By how much, and how that is known."""
        kinds = f"{self.kinds} {'kind' if self.kinds == 1 else 'kinds'}"
        loads = len(self.variances)
        where = f"in the middle of {loads} loads" if loads > 1 else "under one load"
        known = f"one deviation, {where}, by {self.members} {members} of {kinds}"
        return f"{self.usual:.1%} {between} ({known})"

    @cached_property
    def usual(self) -> float:
        """The deviation in the middle of all loads."""
        return math.sqrt(statistics.median(own for own, _ in self.variances.values()))

    @cached_property
    def elsewhere(self) -> float:
        """The variance to reckon with under a load that shows none: it may be a restless one."""
        return statistics.fmean(own for own, _ in self.variances.values())

    def margin(self, load: str) -> float:
        """How far two of the same may lie apart, as logarithm, in about 95 of 100 cases; 0 where
        nothing shows it. Loads of one start err together in part, so that however many they are,
        they are worth one degree of freedom more; where they err together wholly, one pair of
        starts covers 86 cases, four starts of two kinds 92."""
        if not self.variances:
            return 0.0
        many = int(len(self.variances) >= FEW)
        if load not in self.variances:
            return _margin(self.elsewhere, self.members - self.kinds + many)
        own, degrees = self.variances[load]
        return _margin((own + self.usual**2) / 2 if many else own, degrees + many)


def _margin(of: float, degrees: int) -> float:
    return student(degrees) * math.sqrt(2 * of)


@dataclass
class Noise:
    """What the same differs by from one start of an engine to the next."""

    starts: Spread = field(default_factory=Spread)
    """On one machine."""
    machines: Spread = field(default_factory=Spread)
    """On two that go by the same name."""

    def __str__(self) -> str:
        said = []
        if self.starts.members:
            said.append(self.starts.words("from start to start", "starts"))
        if self.machines.members:
            between = "from one machine to another of the same name"
            said.append(self.machines.words(between, "machines"))
        words = f"what is the same to the engine differs by {', and by '.join(said)}"
        if self.starts.members:
            return words
        unknown = (
            "intervals are of repeats within one start of the engine; how much starts differ "
            "was not measured (two recipes that are the same to the engine show it)"
        )
        return f"{words}; on one machine {unknown}" if said else unknown

    def margin(self, one: Cell, other: Cell, load: str) -> float:
        """How far the two may lie apart for no reason of their own, as logarithm."""
        usual = self.starts.margin(load)
        if not self.machines.members or not are_apart(one, other):
            return usual
        return max(usual, self.machines.margin(load))


def bandwidth_of(row: Row) -> float | None:
    """What was measured of one GPU, or of the machine without one, in GB/s."""
    if row.limit.get("rates") != "measured":
        return None
    return float(row.limit[BANDWIDTH]) / gpus_of(row.environment.get("engine_options", {}))


def machine_of(row: Row) -> str:
    """Its card; in rows that do not name it, what was measured of it once: cards of one name differ
    in it. Empty where neither is known."""
    bandwidth = bandwidth_of(row)
    measured = "" if bandwidth is None else f"{bandwidth:.5g} GB/s"
    return str(row.environment.get(CARD) or measured or UNKNOWN)


def are_apart(one: Cell, other: Cell) -> bool:
    """Whether they ran on two machines, as far as is known."""
    both = [{machine_of(row) for row in cell.valid} - {UNKNOWN} for cell in (one, other)]
    return all(both) and both[0] != both[1]


def learned(logarithms: Logarithms) -> Spread:
    variances: dict[str, tuple[float, int]] = {}
    sizes: dict[str, int] = {}
    for load, groups in logarithms.items():
        twins = {kind: found for kind, found in groups.items() if len(found) > 1}
        degrees = sum(len(found) - 1 for found in twins.values())
        if degrees:
            squares = sum((len(found) - 1) * variance(found) for found in twins.values())
            variances[load] = (squares / degrees, degrees)
        for kind, found in twins.items():
            sizes[kind] = max(sizes.get(kind, 0), len(found))
    return Spread(variances, members=sum(sizes.values()), kinds=len(sizes))


def noise_of(parts: list[dict[str, list[Cell]]], value: str | None = None) -> Noise:
    """What cells under the same load differ by that are the same to the engine: in the time that
    ranks them, or in a value of another name. Cells of two parts are never the same."""
    starts: Logarithms = defaultdict(lambda: defaultdict(list))
    machines: Logarithms = defaultdict(lambda: defaultdict(list))
    for number, part in enumerate(parts):
        for load, members in part.items():
            for kind, twins in _twins(members, value).items():
                for machine, found in twins.items():
                    starts[load][f"{number} {machine} {kind}"] += found
                    if machine != UNKNOWN:
                        machines[load][f"{number} {kind}"].append(statistics.fmean(found))
    return Noise(learned(starts), learned(machines))


def _twins(members: Iterable[Cell], value: str | None) -> dict[str, dict[str, list[float]]]:
    """The logarithms of what is the same to the engine, by the machine that it ran on."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in members:
        if FORMAT in cell.row.environment:
            for machine, time in _by_start(cell, value or cell.ranked_by):
                found[_as_the_engine_sees_it(cell)][machine].append(time)
    for twins in found.values():
        known = [machine for machine in twins if machine != UNKNOWN]
        if len(known) == 1:  # no reason to think of another one
            twins[known[0]] += twins.pop(UNKNOWN, [])
    return found


def _by_start(cell: Cell, value: str) -> list[tuple[str, float]]:
    """The machine and the logarithm of the middle of its runs; of each start, where it was measured
    in several."""
    starts: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in cell.valid:
        if value in row.values:
            start = (machine_of(row), row.startup.get("start_s", 0.0))
            starts[start].append(float(row.values[value]))
    middles = {
        start: statistics.median(runs) for start, runs in starts.items() if len(runs) >= LEAST_RUNS
    }
    summary = cell.summary(value)
    if len(starts) == 1 and middles and summary:
        middles = dict.fromkeys(middles, summary.median)  # without what stands out
    return [(machine, math.log(middle)) for (machine, _), middle in middles.items() if middle > 0]


def _as_the_engine_sees_it(cell: Cell) -> str:
    """The same for cells whose engines, formats, sizes, options and kernels are the same, pruned
    or not: zeros run faster."""
    row = cell.row
    stated = [row.environment.get(name) for name in STATED]
    size = row.memory.get("weights_read_gib")
    chosen = [sorted(facts.items()) for facts in (chosen_options(row), row.kernels)]
    return str([row.model, *stated, size, *chosen])
