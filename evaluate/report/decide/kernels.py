"""One checkpoint on several kernels: which of them wins at which batch."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

from evaluate.report.decide.comparison import ComparisonGroup, Entry
from evaluate.report.decide.curves import BATCH, Curve, curves, families, turns
from evaluate.report.decide.ranking import speed_ratio
from evaluate.results.restart_noise import Noise

SUFFIX = "LinearKernel"
BACKEND = "linear_backend"  # vLLM's option that chooses among kernels
LEAST_TOLD = 2


@dataclass
class Kernels:
    """The curves of one checkpoint, by the kernel that ran it."""

    checkpoint: str
    family: str
    """The lengths that stay."""
    curves: dict[str, Curve]


def kernel_of(entry: Entry) -> str:
    """The kernels' names without what all of them end on."""
    names = sorted(set(entry.row.kernels.values()))
    return ", ".join(name.removesuffix(SUFFIX) for name in names)


def choices_of_kernel(group: ComparisonGroup) -> list[Kernels]:
    """The checkpoints that ran on two kernels or more over the same batches, all else alike."""
    found: dict[tuple[str, str, str], dict[str, Curve]] = defaultdict(dict)
    for family, members in families(curves(group, BATCH)).items():
        for curve in members:
            some = curve.points[0][1]
            others = str(sorted((k, value) for k, value in some.options.items() if k != BACKEND))
            if kernel := kernel_of(some):
                found[some.checkpoint, family, others].setdefault(kernel, curve)
    return [Kernels(*name[:2], each) for name, each in found.items() if len(each) > 1]


def kernel_findings(group: ComparisonGroup) -> list[str]:
    """Where one kernel overtakes another, in words."""
    return [
        said
        for kernels in choices_of_kernel(group)
        for one, other in combinations(kernels.curves, 2)
        if (said := _overtaking(kernels, one, other, group.noise))
    ]


def _overtaking(kernels: Kernels, one: str, other: str, noise: Noise) -> str:
    """Nothing where the intervals tell no winner at two batches or more, or the two change places
    again and again."""
    others = dict(kernels.curves[other].points)
    both = [(size, entry) for size, entry in kernels.curves[one].points if size in others]
    told = {
        size: ratio.ratio
        for size, entry in both
        if entry.rank is not None
        and others[size].rank is not None
        and (ratio := speed_ratio(entry, others[size], noise)) is not None
        and ratio.differs
    }
    changes = turns(told, [size for size, _ in both])
    if len(told) < max(LEAST_TOLD, len(both) / 2) or len(changes) > 1:
        return ""
    first, last = (one, other) if next(iter(told.values())) > 1 else (other, one)
    where = f" ({kernels.family})"
    if not changes:
        level = "" if len(told) == len(both) else " or level with it"
        return f"{kernels.checkpoint} runs faster on {first} than on {last}{level}{where}"
    turn = changes[0]
    below, above = f"{first} up to batch {turn.before}", f"{last} from {turn.after} on"
    if turn.place:
        below, above = f"{first} below batch {turn.place}", f"{last} above"
    return f"{kernels.checkpoint} runs faster on {below}, on {above}{where}"
