"""The accuracy of two checkpoints, on the text or the questions that both were judged on.

Each was judged against the original. The difference of those two results has a wider interval than
need be, as both lose more where a text is hard. So losses are compared block by block here, and
answers question by question.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.models import ORIGINAL
from evaluate.accuracy.answers import (
    Answers,
    are_right_or_wrong,
    paired_values,
    unseen_changes,
    widened,
)
from evaluate.accuracy.divergence import LEVEL, NEGLIGIBLE
from evaluate.accuracy.verdicts import BROKEN
from evaluate.results.cells import kernels_of
from evaluate.results.row_values import QuickAccuracy, TaskAccuracy
from evaluate.results.rows import AccuracyRow, Row, current
from evaluate.results.student import quantile

AccuracyPair = tuple[AccuracyRow, AccuracyRow]
FEWEST = 16  # blocks or questions: the interval of fewer says too little
SAME_ORIGINAL = 0.01  # most difference of log perplexity, as between engines
LARGEST_LOG = 700.0  # exp of more overflows
BETTER, WORSE, EQUAL = "better", "worse", "no significant difference"
BOTH_BROKEN = "both are broken"
NOT_KEPT = "unknown: judged by an older version; force=true judges again"
ONLY_FIRST = "unknown: only the first has it"
OTHER_ENGINE = "unknown: judged in another engine"
OTHER_TEXT = "unknown: judged on other text, or with another window"
OTHER_QUESTIONS = "unknown: asked other questions, or scored in another metric"
OTHER_ORIGINAL = "unknown: judged against another original"
TOO_FEW = f"unknown: fewer than {FEWEST} blocks of text or questions"
SAME_RESULT = "unknown: both are the same result"


@dataclass(frozen=True)
class Share:
    """How much of the first one's quality the second has, with its interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Compared:
    """Two checkpoints by one measure, as a line of a table."""

    measure: str
    verdict: str
    first: str = ""
    second: str = ""
    change: str = ""
    interval: str = ""
    quality: Share | None = None
    """None where it is not known, or the first one's quality is zero."""


@dataclass(frozen=True)
class Side:
    """One of two checkpoints that a user names."""

    checkpoint: str
    kernels: frozenset[str] = frozenset()
    """Those of the setup with that name; empty where a name is that of the checkpoint alone."""
    weights: frozenset[str | None] = frozenset()
    """Their hashes: another checkpoint of the same name is another side."""


def accuracy_pairs(
    first: Sequence[Row], second: Sequence[Row], sides: tuple[Side, Side] | None = None
) -> tuple[list[AccuracyPair], list[AccuracyRow]]:
    """Rows of the same measure, and the first one's rows without one in the second: of the two
    named checkpoints, else of each checkpoint that both have, except the original. Of several rows
    that which can be compared is chosen; then that of the same kernels and device, the newest."""
    ones, others = list(judged_rows(first)), list(judged_rows(second))
    if sides is not None:
        ones, others = rows_of_side(ones, sides[0]), rows_of_side(others, sides[1])
    pairs, unmatched = [], []
    for one in ones:
        checkpoint = one.checkpoint if sides is None else sides[1].checkpoint
        if one.checkpoint == checkpoint == ORIGINAL:
            continue
        matching = [
            other
            for other in reversed(others)
            if other.checkpoint == checkpoint and _measure(one) == _measure(other)
        ]
        if matching:
            pairs.append(max(((one, other) for other in matching), key=_fit))
        else:
            unmatched.append(one)
    return pairs, unmatched


def judged_rows(rows: Sequence[Row]) -> Iterator[AccuracyRow]:
    """The newest accuracy rows; invalid ones only where the checkpoint is broken."""
    for row in current(list(rows)):
        if isinstance(row, AccuracyRow) and (not row.invalid or is_broken(row)):
            yield row


def is_broken(row: AccuracyRow) -> bool:
    return row.values.verdict == BROKEN


def rows_of_side(rows: list[AccuracyRow], side: Side) -> list[AccuracyRow]:
    """The rows of a checkpoint: of its kernels, where the same was judged on them."""
    own = [row for row in rows if row.checkpoint == side.checkpoint]
    if None not in side.weights and side.weights:
        own = [row for row in own if row.environment.checkpoint_sha256 in {None, *side.weights}]

    def subject(row: AccuracyRow) -> tuple[object, ...]:
        return *_measure(row), row.environment.engine, judged_on(row)

    of_kernels = {subject(row) for row in own if kernels_of(row) in side.kernels}
    return [row for row in own if kernels_of(row) in side.kernels or subject(row) not in of_kernels]


def _measure(row: AccuracyRow) -> tuple[str, str, type]:
    return row.model, row.measure, type(row.values)


def _fit(pair: AccuracyPair) -> tuple[bool, bool, bool, str]:
    """Larger for a better partner of the first row."""
    kernels = {kernels_of(row) for row in pair}
    devices = {row.environment.device for row in pair}
    return not _doubt(pair), len(kernels) == 1, len(devices) == 1, pair[1].time


def judged_on(row: AccuracyRow) -> tuple[object, ...]:
    """Equal for rows of the same text and window, or of the same questions and metric."""
    values = row.values
    if isinstance(values, TaskAccuracy):
        return values.questions_sha256, values.metric, len(values.scores)
    return values.text_sha256, len(values.block_losses), row.settings.content().get("window")


def original_perplexity(row: AccuracyRow) -> float | None:
    """That of the original that a row was judged against."""
    values = row.values
    if isinstance(values, TaskAccuracy):
        return None
    return values.perplexity if row.checkpoint == ORIGINAL else values.original_perplexity


def has_one_original(rows: Sequence[AccuracyRow]) -> bool:
    """Whether losses are relative to the same original, as far as its perplexity says."""
    known = [value for row in rows if (value := original_perplexity(row)) is not None]
    return not known or math.log(max(known) / min(known)) <= SAME_ORIGINAL


def _doubt(pair: AccuracyPair) -> str:
    """Why two rows cannot be compared; empty where they can."""
    one, other = pair
    if one.environment.engine != other.environment.engine:
        return OTHER_ENGINE
    if is_broken(one) or is_broken(other):
        return ""
    if isinstance(one.values, QuickAccuracy) and isinstance(other.values, QuickAccuracy):
        return _quick_doubt(pair, one.values, other.values)
    counts = [len(row.values.scores) for row in pair if isinstance(row.values, TaskAccuracy)]
    if not all(counts):
        return NOT_KEPT
    if judged_on(one) != judged_on(other):
        return OTHER_QUESTIONS
    return TOO_FEW if min(counts) < FEWEST else ""


def _quick_doubt(pair: AccuracyPair, one: QuickAccuracy, other: QuickAccuracy) -> str:
    kept = [values for values in (one, other) if values.block_losses]
    if len(kept) + sum(row.checkpoint == ORIGINAL for row in pair) < len(pair):
        return NOT_KEPT
    windows = {row.settings.content().get("window") for row in pair}
    texts = {(values.text_sha256, len(values.block_losses)) for values in kept}
    if len(texts) != 1 or len(windows) > 1 or one.tokens != other.tokens:
        return OTHER_TEXT
    if not has_one_original(pair):
        return OTHER_ORIGINAL
    return TOO_FEW if len(kept[0].block_losses) < FEWEST else ""


def compared(pair: AccuracyPair) -> list[Compared]:
    """The pair by each of its measures; `quick` has two, that of the quality first."""
    one, other = pair
    if (one.key, one.time) == (other.key, other.time):
        return [Compared(one.measure, SAME_RESULT)]
    if is_broken(one) or is_broken(other):
        return [_broken(pair)]
    if doubt := _doubt(pair):
        return [Compared(one.measure, doubt)]
    if isinstance(one.values, QuickAccuracy) and isinstance(other.values, QuickAccuracy):
        return _quick(one.measure, one.values, other.values)
    assert isinstance(one.values, TaskAccuracy)
    assert isinstance(other.values, TaskAccuracy)
    return [_task(one.measure, one.values, other.values)]


def _broken(pair: AccuracyPair) -> Compared:
    first, second = (is_broken(row) for row in pair)
    verdict = BOTH_BROKEN if first and second else WORSE if second else BETTER
    texts = {True: "broken", False: "works"}
    return Compared(pair[0].measure, verdict, texts[first], texts[second])


def _quick(measure: str, one: QuickAccuracy, other: QuickAccuracy) -> list[Compared]:
    return [_lost(measure, one, other), _moved(f"{measure}, divergence", one, other)]


def _lost(measure: str, one: QuickAccuracy, other: QuickAccuracy) -> Compared:
    lost = mean_difference(_more(one.block_losses, other.block_losses))
    share, least, most = (
        math.exp(min(-loss, LARGEST_LOG)) for loss in (lost.mean, lost.high, lost.low)
    )
    return Compared(
        measure,
        EQUAL if abs(lost.mean) <= NEGLIGIBLE else _verdict(-lost.high, -lost.low),
        first=f"{one.recovery or 1.0:.4f}",
        second=f"{other.recovery or 1.0:.4f}",
        change=f"{share:.4f} times",
        interval=f"{least:.4f} to {most:.4f}",
        quality=Share(share, least, most),
    )


def _moved(measure: str, one: QuickAccuracy, other: QuickAccuracy) -> Compared:
    moved = mean_difference(_more(one.block_divergences, other.block_divergences))
    return Compared(
        measure,
        _verdict(-moved.high, -moved.low),
        first=f"{one.divergence_mean or 0.0:.4f}",
        second=f"{other.divergence_mean or 0.0:.4f}",
        change=f"{moved.mean:+.4f}",
        interval=f"{moved.low:+.4f} to {moved.high:+.4f}",
    )


def _more(one: list[float], other: list[float]) -> NDArray[Any]:
    """By how much each block of the other is larger; those of the original are zero."""
    none = [0.0] * len(one or other)
    differences: NDArray[Any] = numpy.array(other or none, float) - numpy.array(one or none, float)
    return differences


@dataclass(frozen=True)
class MeanDifference:
    """The mean of paired differences, with its interval."""

    mean: float
    low: float
    high: float


def mean_difference(differences: NDArray[Any]) -> MeanDifference:
    """By Student's t: a bootstrap of few blocks has an interval that is too narrow."""
    mean, half_width = float(differences.mean()), float(half_widths(differences[None], LEVEL)[0])
    return MeanDifference(mean, mean - half_width, mean + half_width)


def half_widths(differences: NDArray[Any], level: float) -> NDArray[Any]:
    """Of the interval of each row's mean."""
    count = differences.shape[1]
    errors: NDArray[Any] = differences.std(axis=1, ddof=1) / math.sqrt(count)
    return quantile(level, count - 1) * errors


def _verdict(low: float, high: float) -> str:
    """By the interval of what the second is better by."""
    return BETTER if low > 0 else WORSE if high < 0 else EQUAL


def _task(measure: str, one: TaskAccuracy, other: TaskAccuracy) -> Compared:
    first, second = (_answers(values) for values in (one, other))
    values = paired_values(first, second)
    lost, gained = values.lost or 0, values.gained or 0
    difference, low, high = (
        value or 0.0 for value in (values.difference, values.difference_low, values.difference_high)
    )
    if are_right_or_wrong(numpy.stack([first.scores, second.scores])):
        is_sure = (values.p_value or 0.0) < 1 - LEVEL
        verdict = EQUAL if not is_sure else WORSE if lost > gained else BETTER
    else:  # a question may be lost by a little and another gained by much
        gain = mean_difference(second.scores - first.scores)
        unseen = unseen_changes(first.scores, second.scores)
        low, high = widened(gain.mean, (gain.low, gain.high), unseen)
        verdict = _verdict(low, high)
    quality = None
    if values.recovery is not None:
        least, most = values.recovery_low, values.recovery_high
        quality = Share(values.recovery, least or 0.0, most or values.recovery)
    return Compared(
        measure,
        verdict,
        first=f"{100 * one.score:.1f}%",
        second=f"{100 * other.score:.1f}%",
        change=f"{100 * difference:+.1f} points ({gained} gained, {lost} lost)",
        interval=f"{100 * low:+.1f} to {100 * high:+.1f}",
        quality=quality,
    )


def _answers(values: TaskAccuracy) -> Answers:
    scores = numpy.array(values.scores, float)
    return Answers(values.metric, scores, [values.questions_sha256 or ""])
