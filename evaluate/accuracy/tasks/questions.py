"""How much of the original is left, question by question: pure arithmetic on two lists of scores.

Both models answer the same questions, so that what is hard about them cancels out: only questions
that one of the two answers better say anything about a difference.
"""

from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.errors import bad_input
from evaluate.accuracy.divergence import (
    BROKEN,
    BROKEN_RECOVERY,
    DRAWS,
    LEVEL,
    LOSS,
    NO_LOSS,
    SMALL_LOSS,
    SMALL_RECOVERY,
)
from evaluate.results.row_values import TaskAccuracy

MOST_EMPTY = 0.5  # share of generated answers; above it a model that used to answer is broken


@dataclass
class Answers:
    """What a model made of the questions of one task."""

    metric: str
    scores: NDArray[Any]
    """One for each question, as a rule 0 or 1."""
    questions: list[str]
    """What each question is known by."""
    empty_share: float = 0.0
    """Generated answers that hold no word."""
    chance_score: float | None = None
    """What guessing would reach, where the answers are given to choose from."""


def own_values(answers: Answers, seed: int = 0, cut_questions: int = 0) -> TaskAccuracy:
    """What can be said of one model alone."""
    low, high = _interval(_drawn(answers.scores[:, None], seed)[:, 0] / len(answers.scores))
    values = TaskAccuracy(
        metric=answers.metric,
        questions=len(answers.scores),
        score=float(answers.scores.mean()),
        score_low=low,
        score_high=high,
        empty_share=answers.empty_share,
        interval=LEVEL,
        cut_questions=cut_questions,
    )
    if answers.chance_score is not None:
        values.chance_score = answers.chance_score
    return values


def paired_values(
    original: Answers, other: Answers, seed: int = 0, cut_questions: int = 0
) -> TaskAccuracy:
    """The other's answers against the original's, with intervals, an exact test and a verdict."""
    if original.questions != other.questions:
        raise bad_input("accuracy: the two models were asked different questions")
    original_score = float(original.scores.mean())
    lost = int((other.scores < original.scores).sum())
    gained = int((other.scores > original.scores).sum())
    sums = _drawn(numpy.stack([original.scores, other.scores], 1), seed)
    low, high = _interval((sums[:, 1] - sums[:, 0]) / len(original.scores))
    own = own_values(other, seed, cut_questions)
    values = own.with_fields(
        original_score=original_score,
        difference=own.score - original_score,
        difference_low=low,
        difference_high=high,
        lost=lost,
        gained=gained,
        p_value=sign_test(lost, gained),
        original_empty_share=original.empty_share,
    )
    if original_score:
        # A draw without one right answer of the original says nothing of a share of them.
        shares = sums[sums[:, 0] > 0]
        values.recovery = values.score / original_score
        values.recovery_low, values.recovery_high = _interval(shares[:, 1] / shares[:, 0])
    values.verdict = verdict(values)
    return values


def verdict(values: TaskAccuracy) -> str:
    """No loss is seen unless more questions are lost than gained and the exact test finds that at
    the level of the intervals. A loss is small with 98 % of the score left. A model is broken
    where the interval of what is left lies below a half, or where it no longer answers."""
    lost, gained, p_value = values.lost or 0, values.gained or 0, values.p_value or 0.0
    silent = (values.empty_share or 0.0) > MOST_EMPTY >= (values.original_empty_share or 0.0)
    is_loss = lost > gained and p_value < 1 - LEVEL
    high = values.recovery_high
    if silent or (is_loss and high is not None and high < BROKEN_RECOVERY):
        return BROKEN
    if not is_loss:
        return NO_LOSS
    is_small = values.recovery is not None and values.recovery >= SMALL_RECOVERY
    return SMALL_LOSS if is_small else LOSS


def joined(parts: list[Answers]) -> Answers:
    """The questions of several tasks as those of one: each question counts alike."""
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part.scores) for part in parts]
    chances = [part.chance_score for part in parts if part.chance_score is not None]
    return Answers(
        metric=f"{len(parts)} tasks",
        scores=numpy.concatenate([part.scores for part in parts]),
        questions=[f"{n} {name}" for n, part in enumerate(parts) for name in part.questions],
        empty_share=float(numpy.average([part.empty_share for part in parts], weights=sizes)),
        chance_score=float(numpy.average(chances, weights=sizes))
        if len(chances) == len(parts)
        else None,
    )


def sign_test(lost: int, gained: int) -> float:
    """How often chance alone would split as many questions at least as unevenly, to either side:
    McNemar's test in its exact form."""
    total = lost + gained
    ways = tail = 1
    for count in range(min(lost, gained)):
        ways = ways * (total - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << total))


def _drawn(columns: NDArray[Any], seed: int) -> NDArray[Any]:
    """Sums of each column over questions drawn with replacement, one row a draw. Questions with
    the same scores are drawn as one kind, which takes little memory for any number of them."""
    kinds, counts = numpy.unique(columns.astype(float), axis=0, return_counts=True)
    chance = numpy.random.default_rng(seed)
    drawn = chance.multinomial(len(columns), counts / counts.sum(), DRAWS)
    sums: NDArray[Any] = drawn @ kinds
    return sums


def _interval(values: NDArray[Any]) -> tuple[float, float]:
    low, high = numpy.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
