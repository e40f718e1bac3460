"""The accuracy of two checkpoints, on the text or the questions that both were judged on.

Each was judged against the original. The difference of those two results has a wider interval than
need be, as both lose more where a text is hard. So losses are compared block by block here, and
answers question by question.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.models import ORIGINAL
from evaluate.accuracy.answers import Answers, paired_values
from evaluate.accuracy.divergence import LEVEL, NEGLIGIBLE, interval_of_blocks
from evaluate.accuracy.verdicts import BROKEN
from evaluate.results.cells import kernels_of
from evaluate.results.row_values import QuickAccuracy, TaskAccuracy
from evaluate.results.rows import AccuracyRow, Row, current

AccuracyPair = tuple[AccuracyRow, AccuracyRow]
BETTER, WORSE, EQUAL = "better", "worse", "no significant difference"
NOT_KEPT = "unknown: judged by an older version; force=true judges again"
OTHER_TEXT = "unknown: judged on other text, or with another window"
OTHER_QUESTIONS = "unknown: asked other questions, or scored in another metric"
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
    advantage: float = 0.0
    """Of the second, in the measure's own unit."""
    p_value: float | None = None
    """Of a difference this large by chance; None where it is not known."""


def accuracy_pairs(
    first: Sequence[Row], second: Sequence[Row], names: Sequence[str] | None = None
) -> list[AccuracyPair]:
    """Rows of the same measure and engine: of the two named checkpoints, else of one checkpoint in
    both. Where a checkpoint was judged on several kernels, rows of the same ones are a pair."""
    pairs = []
    for one in _judged(first):
        if one.checkpoint != (names[0] if names else one.checkpoint):
            continue
        wanted = names[1] if names else one.checkpoint
        others = [other for other in _judged(second) if _matches(one, other, wanted)]
        if others:
            same_kernels = [other for other in others if kernels_of(other) == kernels_of(one)]
            pairs.append((one, (same_kernels or others)[-1]))
    return pairs


def _judged(rows: Sequence[Row]) -> Iterator[AccuracyRow]:
    """The newest accuracy rows; invalid ones only where the checkpoint is broken."""
    for row in current(list(rows)):
        if isinstance(row, AccuracyRow) and (not row.invalid or row.values.verdict == BROKEN):
            yield row


def _matches(one: AccuracyRow, other: AccuracyRow, checkpoint: str) -> bool:
    names = [
        (row.model, row.measure, row.environment.engine, type(row.values)) for row in (one, other)
    ]
    return other.checkpoint == checkpoint and names[0] == names[1]


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
    for all pairs together. Only rows that can be compared with all others have a rank."""
    alike: dict[object, list[AccuracyRow]] = defaultdict(list)
    for row in _judged(rows):
        if row.checkpoint != ORIGINAL:
            alike[row.model, row.measure, row.environment.engine, kernels_of(row)].append(row)
    ranges: dict[int, RankRange] = {}
    for group in alike.values():
        pairs = list(itertools.combinations(group, 2))
        better: Counter[int] = Counter()
        worse: Counter[int] = Counter()
        lines = [(one, other, compared((one, other))[0]) for one, other in pairs]
        if not pairs or any(line.p_value is None for _, _, line in lines):
            continue
        for one, other, line in lines:
            if (line.p_value or 0.0) < (1 - LEVEL) / len(pairs) and line.advantage:
                ahead, behind = (other, one) if line.advantage > 0 else (one, other)
                better[id(behind)] += 1
                worse[id(ahead)] += 1
        for row in group:
            place = id(row)
            ranges[place] = RankRange(1 + better[place], len(group) - worse[place])
    return ranges


def compared(pair: AccuracyPair) -> list[Compared]:
    """The pair by each of its measures; `quick` has two, that of the quality first."""
    one, other = pair
    if (one.key, one.time) == (other.key, other.time):
        return [Compared(one.measure, SAME_RESULT)]
    if BROKEN in (one.values.verdict, other.values.verdict):
        return [_broken(pair)]
    if isinstance(one.values, QuickAccuracy) and isinstance(other.values, QuickAccuracy):
        return _quick(pair, one.values, other.values)
    assert isinstance(one.values, TaskAccuracy)
    assert isinstance(other.values, TaskAccuracy)
    return [_task(one.measure, one.values, other.values)]


def _broken(pair: AccuracyPair) -> Compared:
    first, second = (row.values.verdict == BROKEN for row in pair)
    verdict = EQUAL if first and second else WORSE if second else BETTER
    texts = {True: "broken", False: "works"}
    return Compared(
        pair[0].measure,
        verdict,
        texts[first],
        texts[second],
        advantage=float(first) - float(second),
        p_value=0.0,
    )


def _quick(pair: AccuracyPair, one: QuickAccuracy, other: QuickAccuracy) -> list[Compared]:
    measure, sides = pair[0].measure, (one, other)
    kept = [values for values in sides if values.block_losses]
    if len(kept) + sum(row.checkpoint == ORIGINAL for row in pair) < len(sides):
        return [Compared(measure, NOT_KEPT)]
    windows = {row.settings.content().get("window") for row in pair}
    texts = {(values.text_sha256, len(values.block_losses)) for values in kept}
    if len(texts) != 1 or len(windows) > 1 or one.tokens != other.tokens:
        return [Compared(measure, OTHER_TEXT)]
    return [_lost(measure, one, other), _moved(f"{measure}, divergence", one, other)]


def _lost(measure: str, one: QuickAccuracy, other: QuickAccuracy) -> Compared:
    blocks = _more(one.block_losses, other.block_losses)
    low, high = interval_of_blocks(blocks, seed=0)
    share, least, most = (math.exp(-loss) for loss in (float(blocks.mean()), high, low))
    is_negligible = abs(float(blocks.mean())) <= NEGLIGIBLE
    return Compared(
        measure,
        EQUAL if is_negligible else _verdict(-high, -low),
        first=f"{one.recovery or 1.0:.4f}",
        second=f"{other.recovery or 1.0:.4f}",
        change=f"{share:.4f} times",
        interval=f"{least:.4f} to {most:.4f}",
        quality=Share(share, least, most),
        advantage=0.0 if is_negligible else -float(blocks.mean()),
        p_value=_chance(blocks),
    )


def _chance(blocks: NDArray[Any]) -> float:
    """The two-sided p-value of a mean other than zero; blocks are many, so it is that of a normal
    distribution."""
    deviation = float(blocks.std(ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else math.inf
    if deviation == 0.0:
        return 1.0 if float(blocks.mean()) == 0.0 else 0.0
    return math.erfc(abs(float(blocks.mean())) / deviation / math.sqrt(2))


def _moved(measure: str, one: QuickAccuracy, other: QuickAccuracy) -> Compared:
    blocks = _more(one.block_divergences, other.block_divergences)
    low, high = interval_of_blocks(blocks, seed=0)
    return Compared(
        measure,
        _verdict(-high, -low),
        first=f"{one.divergence_mean or 0.0:.4f}",
        second=f"{other.divergence_mean or 0.0:.4f}",
        change=f"{blocks.mean():+.4f}",
        interval=f"{low:+.4f} to {high:+.4f}",
    )


def _more(one: list[float], other: list[float]) -> NDArray[Any]:
    """By how much each block of the other is larger; those of the original are zero."""
    count = len(one or other)
    none = [0.0] * count
    differences: NDArray[Any] = numpy.array(other or none) - numpy.array(one or none)
    return differences


def _verdict(low: float, high: float) -> str:
    """By the interval of what the second is better by."""
    return BETTER if low > 0 else WORSE if high < 0 else EQUAL


def _task(measure: str, one: TaskAccuracy, other: TaskAccuracy) -> Compared:
    if not (one.scores and other.scores):
        return Compared(measure, NOT_KEPT)
    asked = [
        (values.questions_sha256, values.metric, len(values.scores)) for values in (one, other)
    ]
    if asked[0] != asked[1]:
        return Compared(measure, OTHER_QUESTIONS)
    first, second = (_answers(values) for values in (one, other))
    values = paired_values(first, second)
    lost, gained = values.lost or 0, values.gained or 0
    is_sure = (values.p_value or 0.0) < 1 - LEVEL
    verdict = EQUAL if not is_sure else WORSE if lost > gained else BETTER
    difference, low, high = (
        100 * (value or 0.0)
        for value in (values.difference, values.difference_low, values.difference_high)
    )
    quality = None
    if values.recovery is not None:
        least, most = values.recovery_low, values.recovery_high
        quality = Share(values.recovery, least or 0.0, most or values.recovery)
    return Compared(
        measure,
        verdict,
        first=f"{100 * one.score:.1f}%",
        second=f"{100 * other.score:.1f}%",
        change=f"{difference:+.1f} points ({gained} gained, {lost} lost)",
        interval=f"{low:+.1f} to {high:+.1f}",
        quality=quality,
        advantage=difference,
        p_value=values.p_value,
    )


def _answers(values: TaskAccuracy) -> Answers:
    scores = numpy.array(values.scores, float)
    return Answers(values.metric, scores, [values.questions_sha256 or ""])
