"""The ranks of checkpoints by accuracy, from comparisons of all pairs on the same text or the same
questions."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.models import ORIGINAL
from evaluate.accuracy.answers import are_right_or_wrong
from evaluate.accuracy.divergence import LEVEL, NEGLIGIBLE
from evaluate.accuracy.pairs import (
    FEWEST,
    half_widths,
    has_one_original,
    is_broken,
    judged_on,
    judged_rows,
)
from evaluate.results.cells import kernels_of
from evaluate.results.row_values import TaskAccuracy
from evaluate.results.rows import AccuracyRow, Row


@dataclass(frozen=True)
class RankRange:
    """The ranks by accuracy that the data leaves open."""

    best: int
    worst: int

    def __str__(self) -> str:
        return str(self.best) if self.best == self.worst else f"{self.best} to {self.worst}"


def rank_ranges(rows: Sequence[Row]) -> dict[int, RankRange]:
    """The ranks of checkpoints that were judged alike, by the id of their rows: one is behind those
    that are significantly better, and ahead of those that are significantly worse. The level counts
    for all pairs together."""
    ranges: dict[int, RankRange] = {}
    for group in _groups(rows):
        advantages = _advantages(group)
        better, worse = (advantages > 0).sum(axis=0), (advantages < 0).sum(axis=0)
        for place, row in enumerate(group):
            ranges[id(row)] = RankRange(1 + int(better[place]), len(group) - int(worse[place]))
    return ranges


def judged_in(row: AccuracyRow) -> tuple[object, ...]:
    """Equal for rows that differ in their checkpoint, and in the text or the questions only."""
    environment = row.environment
    versions = tuple(sorted(environment.versions.items()))
    place = (environment.engine, environment.device, versions, kernels_of(row))
    return row.model, row.measure, type(row.values), *place


def _groups(rows: Sequence[Row]) -> Iterator[list[AccuracyRow]]:
    """The newest row of each checkpoint, for each text or set of questions that all checkpoints
    were judged on. Without one of them, the ranks of the others would be too good."""
    alike: dict[object, list[AccuracyRow]] = defaultdict(list)
    for row in judged_rows(rows):
        if row.checkpoint != ORIGINAL:
            alike[judged_in(row)].append(row)
    for members in alike.values():
        for subject in dict.fromkeys(judged_on(row) for row in members if not is_broken(row)):
            own = [row for row in members if is_broken(row) or judged_on(row) == subject]
            newest = {row.checkpoint: row for row in sorted(own, key=lambda row: row.time)}
            checkpoints = {row.checkpoint for row in members}
            group = list(newest.values())
            if len(group) == len(checkpoints) > 1 and _can_be_compared(group):
                yield group


def _can_be_compared(group: list[AccuracyRow]) -> bool:
    working = [row for row in group if not is_broken(row)]
    return min(map(len, map(_qualities, working)), default=0) >= FEWEST and (
        has_one_original(working)
    )


def _qualities(row: AccuracyRow) -> list[float]:
    """Of each block or question: more is better."""
    if isinstance(row.values, TaskAccuracy):
        return row.values.scores
    return [-loss for loss in row.values.block_losses]


def _advantages(group: list[AccuracyRow]) -> NDArray[Any]:
    """For each pair, 1 where the first is significantly better than the second, -1 where it is
    worse, else 0. Broken ones are behind all others."""
    level = 1 - (1 - LEVEL) / math.comb(len(group), 2)
    works = numpy.array([0 if is_broken(row) else 1 for row in group])
    advantages: NDArray[Any] = works[:, None] - works[None, :]
    working = numpy.flatnonzero(works)
    qualities = numpy.array([_qualities(group[place]) for place in working], float)
    is_task = isinstance(group[0].values, TaskAccuracy)
    is_by_answers = is_task and are_right_or_wrong(qualities)
    negligible = 0.0 if is_task else NEGLIGIBLE
    for number, place in enumerate(working):
        rest, differences = working[number + 1 :], qualities[number] - qualities[number + 1 :]
        signs = (
            _answer_signs(differences, level)
            if is_by_answers
            else _mean_signs(differences, level, negligible)
        )
        advantages[place, rest], advantages[rest, place] = signs, -signs
    return advantages


def _answer_signs(differences: NDArray[Any], level: float) -> NDArray[Any]:
    """The sign of each row of differences between answers, 0 where it is not significant."""
    gained, lost = (differences > 0).sum(axis=1), (differences < 0).sum(axis=1)
    signs: NDArray[Any] = numpy.sign(gained - lost) * (_sign_chances(lost, gained) < 1 - level)
    return signs


def _sign_chances(lost: NDArray[Any], gained: NDArray[Any]) -> NDArray[Any]:
    """The p-values of `sign_test` from logarithms: for thousands of changed questions, its whole
    numbers have thousands of digits."""
    fewer, totals = numpy.minimum(lost, gained), lost + gained
    logs = numpy.log(numpy.arange(1, totals.max(initial=0) + 1))
    factorials = numpy.concatenate([[0.0], numpy.cumsum(logs)])
    chances = []
    for few, total in zip(fewer, totals, strict=True):
        counts = numpy.arange(few + 1)
        ways = factorials[total] - factorials[counts] - factorials[total - counts]
        chances.append(min(1.0, 2 * float(numpy.exp(ways - total * math.log(2)).sum())))
    return numpy.array(chances)


def _mean_signs(differences: NDArray[Any], level: float, negligible: float) -> NDArray[Any]:
    """The same by the interval of each row's mean."""
    means = differences.mean(axis=1)
    is_sure = numpy.abs(means) > numpy.maximum(half_widths(differences, level), negligible)
    signs: NDArray[Any] = numpy.sign(means) * is_sure
    return signs
