"""Compares the kernels that one checkpoint ran on, by batch size."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

from conf.schema.kernels import KERNELS_OPTION
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.curves import BATCH, Curve, curves, families, turns
from evaluate.report.decide.ranking import speed_ratio
from evaluate.results.cells import kernel_names
from evaluate.results.restart_noise import Noise

OURS = (KERNELS_OPTION, "second_layout")
CHOOSING = ("linear_backend", *OURS)
"""Options that choose among kernels: vLLM's, and ours."""
LEAST_SIGNIFICANT = 2


@dataclass
class Kernels:
    """The curves of one checkpoint, by the kernel that ran it."""

    checkpoint: str
    family: str
    """The lengths that are fixed, as text."""
    curves: dict[str, Curve]


def choices_of_kernel(group: ComparisonGroup) -> list[Kernels]:
    """The checkpoints that ran on two or more kernels over the same batches, with otherwise equal
    options."""
    curves_by_setup: dict[tuple[str, str, str], dict[str, Curve]] = defaultdict(dict)
    for family, members in families(curves(group, BATCH)).items():
        for curve in members:
            first_entry = curve.points[0][1]
            other_options = str(
                sorted((k, value) for k, value in first_entry.options.items() if k not in CHOOSING)
            )
            if kernel := kernel_names(first_entry.row):
                same_setup = curves_by_setup[first_entry.checkpoint, family, other_options]
                if kernel in same_setup:  # one kernel, under two choices of products
                    chosen = [f"{k}={v}" for k, v in first_entry.options.items() if k in CHOOSING]
                    kernel += f" ({', '.join(chosen) or curve.candidate})"
                same_setup.setdefault(kernel, curve)
    return [
        Kernels(*name[:2], kernel_curves)
        for name, kernel_curves in curves_by_setup.items()
        if len(kernel_curves) > 1
    ]


def kernel_findings(group: ComparisonGroup) -> list[str]:
    """Sentences on where one kernel overtakes another."""
    return [
        sentence
        for kernels in choices_of_kernel(group)
        for one, other in combinations(kernels.curves, 2)
        if (sentence := _kernel_sentence(kernels, one, other, group.noise))
    ]


def _kernel_sentence(kernels: Kernels, one: str, other: str, noise: Noise) -> str:
    """Says which kernel is faster at which batches. Empty if fewer than two batches have a
    significant winner, or if the two change places more than once."""
    other_points = dict(kernels.curves[other].points)
    shared_points = [
        (size, entry) for size, entry in kernels.curves[one].points if size in other_points
    ]
    significant = {
        size: ratio.ratio
        for size, entry in shared_points
        if entry.rank is not None
        and other_points[size].rank is not None
        and (ratio := speed_ratio(entry, other_points[size], noise)) is not None
        and ratio.differs
    }
    changes = turns(significant, [size for size, _ in shared_points])
    if len(significant) < max(LEAST_SIGNIFICANT, len(shared_points) / 2) or len(changes) > 1:
        return ""
    first, last = (one, other) if next(iter(significant.values())) > 1 else (other, one)
    scope = f" ({kernels.family})"
    if not changes:
        tie_text = "" if len(significant) == len(shared_points) else " or level with it"
        return f"{kernels.checkpoint} runs faster on {first} than on {last}{tie_text}{scope}"
    turn = changes[0]
    below, above = f"{first} up to batch {turn.before}", f"{last} from {turn.after} on"
    if turn.place:
        below, above = f"{first} below batch {turn.place}", f"{last} above"
    return f"{kernels.checkpoint} runs faster on {below}, on {above}{scope}"
