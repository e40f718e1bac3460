"""Speed over batch size and context length, and where a candidate overtakes the original."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from conf.models import ORIGINAL
from evaluate.report.decide.comparison import ComparisonGroup, Entry

BATCH, CONTEXT = "batch", "input_tokens"
LEAST_POINTS = 3
ROUGH = 10  # a crossing above this is rounded to two digits


@dataclass
class Curve:
    """One candidate over workloads that differ in only one length."""

    candidate: str
    axis: str
    """batch or input_tokens."""
    fixed: dict[str, int]
    """The lengths that are the same for all points."""
    points: list[tuple[int, Entry]] = field(default_factory=list)


def curves(group: ComparisonGroup, axis: str) -> list[Curve]:
    """The curves of all candidates with at least three points along an axis."""
    curves_by_key: dict[tuple[object, ...], Curve] = {}
    for workload in group.workloads:
        batch, inputs = workload.settings.batch, workload.settings.input_tokens
        outputs = workload.settings.output_tokens
        if batch is None or inputs is None or outputs is None:
            continue
        lengths = {BATCH: batch, CONTEXT: inputs, "output_tokens": outputs}
        size = lengths.pop(axis)
        for entry in workload.entries:
            key = (entry.candidate, *sorted(lengths.items()))
            curve = curves_by_key.setdefault(key, Curve(entry.candidate, axis, dict(lengths)))
            curve.points.append((size, entry))
    long_curves = [curve for curve in curves_by_key.values() if _sizes(curve) >= LEAST_POINTS]
    for curve in long_curves:
        curve.points = sorted(dict(reversed(curve.points)).items())
    return long_curves


def _sizes(curve: Curve) -> int:
    return len({size for size, _ in curve.points})


def crossing(curve: Curve) -> str:
    """A sentence on where the candidate becomes faster or slower than the original. Empty if that
    changes more than once, or if too few points are significant."""
    significant = {
        size: entry.ratio.ratio
        for size, entry in curve.points
        if entry.ratio is not None and entry.ratio.differs and entry.rank is not None
    }
    if _is_original(curve) or not significant:
        return ""
    name = "batch" if curve.axis == BATCH else "context"
    sizes = [size for size, _ in curve.points]
    changes = turns(significant, sizes)
    if len(changes) > 1 or len(significant) < len(sizes) / 2:
        return ""
    if changes:
        return f"{curve.candidate} is {_turn_sentence(changes[0], significant, sizes, name)}"
    ahead = "faster" if next(iter(significant.values())) > 1 else "slower"
    tie_text = "or level with it" if len(significant) < len(sizes) else "over the whole range"
    scope = f"{name} {sizes[0]} to {sizes[-1]:,}"
    return f"{curve.candidate} is {ahead} than the original {tie_text}, {scope}"


def _turn_sentence(turn: "Turn", significant: dict[int, float], sizes: list[int], name: str) -> str:
    """A turn as text, with the sides that include points without a significant difference."""
    starts_ahead = significant[turn.before] > 1
    if turn.place and len(significant) == len(sizes):
        return (
            f"faster than the original {'below' if starts_ahead else 'above'} {name} {turn.place}"
        )
    early_decided = all(size in significant for size in sizes if size <= turn.before)
    late_decided = all(size in significant for size in sizes if size >= turn.after)
    tie_texts = ["" if side else " or level with it" for side in (early_decided, late_decided)]
    first, last = ("faster", "slower") if starts_ahead else ("slower", "faster")
    until = f"{first} than the original{tie_texts[0]} up to {name} {turn.before:,}"
    return f"{until}, {last}{tie_texts[1]} from {turn.after:,} on"


def _is_original(curve: Curve) -> bool:
    return curve.points[0][1].checkpoint == ORIGINAL


class Turn(NamedTuple):
    """A change of the speed-up from below 1 to above, or the reverse."""

    before: int
    after: int
    """`before` and `after` are the nearest sizes with a significant winner."""
    place: str
    """The size between them at which the speed-up is 1. Empty if sizes in between were measured
    without a significant winner."""


def turns(significant: dict[int, float], sizes: list[int]) -> list[Turn]:
    """The turns, from the significant speed-ups by size and all measured sizes."""
    return [
        Turn(
            size,
            after,
            ""
            if any(size < n < after for n in sizes)
            else _crossing_size(size, ratio, after, next_ratio),
        )
        for (size, ratio), (after, next_ratio) in pairwise(significant.items())
        if (ratio > 1) != (next_ratio > 1)
    ]


def _crossing_size(size: int, ratio: float, after: int, next_ratio: float) -> str:
    """The size at which the speed-up is 1, interpolated with both axes logarithmic."""
    fraction = math.log(ratio) / (math.log(ratio) - math.log(next_ratio))
    place = math.exp(math.log(size) + fraction * (math.log(after) - math.log(size)))
    digits = 2 - len(str(int(place))) if place > ROUGH else 0
    return f"{round(place, digits):,.0f}"


def families(members: list[Curve]) -> dict[str, list[Curve]]:
    """Curves by their fixed lengths, as text for a title."""
    by_lengths: dict[str, list[Curve]] = defaultdict(list)
    for curve in members:
        templates = {"batch": "{} at once", CONTEXT: "{:,} tokens in", "output_tokens": "{:,} out"}
        by_lengths[", ".join(templates[name].format(n) for name, n in curve.fixed.items())].append(
            curve
        )
    return dict(by_lengths)
