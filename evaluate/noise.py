"""How much starts of an engine differ, which repeats within one start cannot show."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from conf.models import MADE_UP
from evaluate.cells import LEAST_RUNS, Cell, chosen_options
from evaluate.summary import student, variance

FEW = 3  # loads; below, there is no telling what is usual
FORMAT = "quantization_sha256"
STATED = (
    *("device", "driver", "power_limit_w", "cpu", "cores", "engine", "versions"),
    *(FORMAT, "weights", MADE_UP, "pruned"),
)


@dataclass
class Noise:
    """Learned from candidates that are the same to the engine: whatever they differ by is noise.
    Loads differ in it, and each knows its own from a few starts only: halfway between that and
    what is usual is the better guess."""

    variances: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By load: of the logarithm of latency, and the degrees of freedom behind it."""
    starts: int = 0
    kinds: int = 0
    """Of starts that are the same."""

    def __str__(self) -> str:
        if not self.starts:
            return (
                "intervals are of repeats within one start of the engine; how much starts differ "
                "was not measured (two recipes that are the same to the engine show it)"
            )
        kinds = f"{self.kinds} {'kind' if self.kinds == 1 else 'kinds'}"
        loads = len(self.variances)
        where = f"in the middle of {loads} loads" if loads > 1 else "under one load"
        return (
            f"what is the same to the engine differs by {self.usual:.1%} from start to start (one "
            f"deviation, {where}, by {self.starts} starts of {kinds})"
        )

    @cached_property
    def usual(self) -> float:
        """The deviation in the middle of all loads."""
        return math.sqrt(statistics.median(own for own, _ in self.variances.values()))

    @cached_property
    def elsewhere(self) -> float:
        """The variance to reckon with under a load that shows none: it may be a restless one."""
        return statistics.fmean(own for own, _ in self.variances.values())

    def margin(self, load: str) -> float:
        """How far two starts of the same may lie apart, as logarithm, in about 95 of 100 cases; 0
        where nothing shows it. Loads of one start err together in part, so that however many they
        are, they are worth one degree of freedom more; where they err together wholly, one pair of
        starts covers 86 cases, four starts of two kinds 92."""
        if not self.variances:
            return 0.0
        many = int(len(self.variances) >= FEW)
        if load not in self.variances:
            return _margin(self.elsewhere, self.starts - self.kinds + many)
        own, degrees = self.variances[load]
        return _margin((own + self.usual**2) / 2 if many else own, degrees + many)


def _margin(of: float, degrees: int) -> float:
    return student(degrees) * math.sqrt(2 * of)


def learned(latencies: dict[str, dict[str, list[float]]]) -> Noise:
    """From the logarithms of latencies, by load and by what is the same to the engine."""
    variances: dict[str, tuple[float, int]] = {}
    sizes: dict[str, int] = {}
    for load, groups in latencies.items():
        twins = {kind: found for kind, found in groups.items() if len(found) > 1}
        degrees = sum(len(found) - 1 for found in twins.values())
        if degrees:
            squares = sum((len(found) - 1) * variance(found) for found in twins.values())
            variances[load] = (squares / degrees, degrees)
        for kind, found in twins.items():
            sizes[kind] = max(sizes.get(kind, 0), len(found))
    return Noise(variances, starts=sum(sizes.values()), kinds=len(sizes))


def noise_of(parts: list[dict[str, list[Cell]]], value: str | None = None) -> Noise:
    """What cells under the same load differ by that are the same to the engine: in the time that
    ranks them, or in a value of another name. Cells of two parts are never the same."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, part in enumerate(parts):
        for load, members in part.items():
            for cell in members:
                summary = cell.summary(value or cell.ranked_by)
                known = FORMAT in cell.row.environment
                if known and summary and summary.median > 0 and summary.runs >= LEAST_RUNS:
                    kind = f"{number} {_as_the_engine_sees_it(cell)}"
                    found[load][kind].append(math.log(summary.median))
    return learned(found)


def _as_the_engine_sees_it(cell: Cell) -> str:
    """The same for cells whose engines, formats, sizes, options and kernels are the same, pruned
    or not: zeros run faster."""
    row = cell.row
    stated = [row.environment.get(name) for name in STATED]
    size = row.memory.get("weights_read_gib")
    chosen = [sorted(facts.items()) for facts in (chosen_options(row), row.kernels)]
    return str([row.model, *stated, size, *chosen])
