"""How speed goes with batch size and context length, and where a candidate starts to lose."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from conf.models import ORIGINAL
from evaluate.report.decide.comparison import ComparisonGroup, Entry

BATCH, CONTEXT = "batch", "input_tokens"
LEAST_POINTS = 3
ROUGH = 10  # a crossing above this is named to two digits


@dataclass
class Curve:
    """One candidate over workloads that differ in one length only."""

    candidate: str
    axis: str
    """batch or input_tokens."""
    fixed: dict[str, int]
    """The lengths that stay."""
    points: list[tuple[int, Entry]] = field(default_factory=list)


def curves(group: ComparisonGroup, axis: str) -> list[Curve]:
    """Every candidate with three points or more along an axis."""
    found: dict[tuple[object, ...], Curve] = {}
    for workload in group.workloads:
        batch, inputs = workload.settings.batch, workload.settings.input_tokens
        outputs = workload.settings.output_tokens
        if batch is None or inputs is None or outputs is None:
            continue
        lengths = {BATCH: batch, CONTEXT: inputs, "output_tokens": outputs}
        size = lengths.pop(axis)
        for entry in workload.entries:
            name = (entry.candidate, *sorted(lengths.items()))
            curve = found.setdefault(name, Curve(entry.candidate, axis, dict(lengths)))
            curve.points.append((size, entry))
    long = [curve for curve in found.values() if _sizes(curve) >= LEAST_POINTS]
    for curve in long:
        curve.points = sorted(dict(reversed(curve.points)).items())
    return long


def _sizes(curve: Curve) -> int:
    return len({size for size, _ in curve.points})


def crossing(curve: Curve) -> str:
    """Where it starts or stops to beat the original, in words; nothing where it does so again and
    again, or the intervals do not carry it."""
    told = {
        size: entry.ratio.ratio
        for size, entry in curve.points
        if entry.ratio is not None and entry.ratio.differs and entry.rank is not None
    }
    if _is_original(curve) or not told:
        return ""
    name = "batch" if curve.axis == BATCH else "context"
    sizes = [size for size, _ in curve.points]
    changes = turns(told, sizes)
    if len(changes) > 1 or len(told) < len(sizes) / 2:
        return ""
    if changes:
        return f"{curve.candidate} is {_turned(changes[0], told, sizes, name)}"
    ahead = "faster" if next(iter(told.values())) > 1 else "slower"
    level = "or level with it" if len(told) < len(sizes) else "over the whole range"
    where = f"{name} {sizes[0]} to {sizes[-1]:,}"
    return f"{curve.candidate} is {ahead} than the original {level}, {where}"


def _turned(turn: "Turn", told: dict[int, float], sizes: list[int], name: str) -> str:
    """A change of places, in words, and where within its sides none can be told."""
    starts_ahead = told[turn.before] > 1
    if turn.place and len(told) == len(sizes):
        return (
            f"faster than the original {'below' if starts_ahead else 'above'} {name} {turn.place}"
        )
    early = all(size in told for size in sizes if size <= turn.before)
    late = all(size in told for size in sizes if size >= turn.after)
    level = ["" if side else " or level with it" for side in (early, late)]
    first, last = ("faster", "slower") if starts_ahead else ("slower", "faster")
    until = f"{first} than the original{level[0]} up to {name} {turn.before:,}"
    return f"{until}, {last}{level[1]} from {turn.after:,} on"


def _is_original(curve: Curve) -> bool:
    return curve.points[0][1].checkpoint == ORIGINAL


class Turn(NamedTuple):
    """Where a speed-up goes past 1."""

    before: int
    after: int
    """The sizes on either side that tell a winner."""
    place: str
    """Between them; empty where sizes in between were measured, and tell none."""


def turns(told: dict[int, float], sizes: list[int]) -> list[Turn]:
    """By the sizes that tell a winner, and all that were measured."""
    return [
        Turn(
            size,
            after,
            "" if any(size < n < after for n in sizes) else _between(size, ratio, after, other),
        )
        for (size, ratio), (after, other) in pairwise(told.items())
        if (ratio > 1) != (other > 1)
    ]


def _between(size: int, ratio: float, after: int, other: float) -> str:
    """Where the line between two points, both axes as logarithms, meets 1."""
    part = math.log(ratio) / (math.log(ratio) - math.log(other))
    place = math.exp(math.log(size) + part * (math.log(after) - math.log(size)))
    digits = 2 - len(str(int(place))) if place > ROUGH else 0
    return f"{round(place, digits):,.0f}"


def families(found: list[Curve]) -> dict[str, list[Curve]]:
    """Curves by the lengths that stay, named for a title."""
    parts: dict[str, list[Curve]] = defaultdict(list)
    for curve in found:
        words = {"batch": "{} at once", CONTEXT: "{:,} tokens in", "output_tokens": "{:,} out"}
        parts[", ".join(words[name].format(n) for name, n in curve.fixed.items())].append(curve)
    return dict(parts)
