"""One checkpoint on several kernels: which of them wins at which batch."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, pairwise

from evaluate.report.curves import BATCH, Curve, between, curves
from evaluate.report.grounds import Entry, Ground
from evaluate.report.ranking import ratio_of
from evaluate.report.records import Record, speedup_record

SUFFIX = "LinearKernel"


@dataclass
class Kernels:
    """The curves of one checkpoint, by the kernel that ran it."""

    checkpoint: str
    curves: dict[str, Curve]


def kernel_of(entry: Entry) -> str:
    """The kernels' names without what all of them end on."""
    names = sorted(set(entry.row.kernels.values()))
    return ", ".join(name.removesuffix(SUFFIX) for name in names)


def choices_of_kernel(ground: Ground) -> list[Kernels]:
    """The checkpoints that ran on two kernels or more over the same batches."""
    found: dict[tuple[object, ...], dict[str, Curve]] = defaultdict(dict)
    for curve in curves(ground, BATCH):
        some = curve.points[0][1]
        if kernel := kernel_of(some):
            found[some.checkpoint, *sorted(curve.fixed.items())].setdefault(kernel, curve)
    return [Kernels(str(name[0]), each) for name, each in found.items() if len(each) > 1]


def kernel_records(ground: Ground) -> list[Record]:
    """Speed-ups by kernel, one record a point."""
    return [
        {
            "ground": ground.title,
            "checkpoint": kernels.checkpoint,
            "candidate": curve.candidate,
            "scenario": entry.load.name,
            "kernel": kernel,
            "size": size,
        }
        | speedup_record(entry)
        for kernels in choices_of_kernel(ground)
        for kernel, curve in kernels.curves.items()
        for size, entry in curve.points
    ]


def kernel_findings(ground: Ground) -> list[str]:
    """Where one kernel overtakes another, in words."""
    return [
        said
        for kernels in choices_of_kernel(ground)
        for one, other in combinations(kernels.curves, 2)
        if (said := _overtaking(kernels, one, other, ground.between or 0.0))
    ]


def _overtaking(kernels: Kernels, one: str, other: str, noise: float) -> str:
    """Nothing where the intervals tell no winner at two batches or more."""
    others = dict(kernels.curves[other].points)
    told = [
        (size, ratio.ratio)
        for size, entry in kernels.curves[one].points
        if size in others
        and (ratio := ratio_of(entry, others[size], noise)) is not None
        and ratio.differs
    ]
    if len(told) < 2:
        return ""
    first, last = (one, other) if told[0][1] > 1 else (other, one)
    for (size, before), (after, later) in pairwise(told):
        if (before > 1) != (later > 1):
            at = between(size, before, after, later)
            return f"{kernels.checkpoint} runs faster on {first} below batch {at}, on {last} above"
    return f"{kernels.checkpoint} runs faster on {first} than on {last} at every batch that tells"
