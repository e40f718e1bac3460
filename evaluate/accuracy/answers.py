"""Compares two models' scores, question by question: pure arithmetic on two lists of scores.

Both models answer the same questions, so that their difficulty cancels out. Only questions that
one of the two answers better show a difference.
"""

import hashlib
import math
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

MOST_EMPTY = 0.5  # share of empty answers above which a model is broken, if the original's is lower


@dataclass
class Answers:
    """A model's scores on the questions of one task."""

    metric: str
    scores: NDArray[Any]
    """One per question, usually 0 or 1."""
    questions: list[str]
    """Identifies each question."""
    empty_share: float = 0.0
    """The share of generated answers without text."""
    chance_score: float | None = None
    """The expected score of guessing; None unless the task is multiple choice."""

    @property
    def sha256(self) -> str:
        """Equal for the same questions in the same order."""
        return hashlib.sha256("\n".join(self.questions).encode()).hexdigest()


def own_values(answers: Answers, seed: int = 0, cut_questions: int = 0) -> TaskAccuracy:
    """The accuracy of one model without a comparison."""
    low, high = _interval(
        _bootstrap_sums(answers.scores[:, None], seed)[:, 0] / len(answers.scores)
    )
    values = TaskAccuracy(
        metric=answers.metric,
        questions=len(answers.scores),
        score=float(answers.scores.mean()),
        score_low=low,
        score_high=high,
        empty_share=answers.empty_share,
        interval=LEVEL,
        cut_questions=cut_questions,
        questions_sha256=answers.sha256,
        scores=[_short(score) for score in answers.scores.tolist()],
    )
    if answers.chance_score is not None:
        values.chance_score = answers.chance_score
    return values


def paired_values(
    original: Answers, other: Answers, seed: int = 0, cut_questions: int = 0
) -> TaskAccuracy:
    """The other's answers compared with the original's, with confidence intervals, an exact test
    and a verdict."""
    if original.questions != other.questions:
        raise bad_input("accuracy: the two models were asked different questions")
    original_score = float(original.scores.mean())
    lost = int((other.scores < original.scores).sum())
    gained = int((other.scores > original.scores).sum())
    sums = _bootstrap_sums(numpy.stack([original.scores, other.scores], 1), seed)
    drawn = _interval((sums[:, 1] - sums[:, 0]) / len(original.scores))
    unseen = unseen_changes(original.scores, other.scores)
    values_alone = own_values(other, seed, cut_questions)
    difference = values_alone.score - original_score
    low, high = widened(difference, drawn, unseen)
    values = values_alone.with_fields(
        original_score=original_score,
        difference=difference,
        difference_low=low,
        difference_high=high,
        lost=lost,
        gained=gained,
        p_value=sign_test(lost, gained),
        original_empty_share=original.empty_share,
    )
    if original_score > 0:
        # Recovery is undefined for a draw in which the original has no right answer.
        shares = sums[sums[:, 0] > 0]
        values.recovery = values.score / original_score
        drawn = _interval(shares[:, 1] / shares[:, 0])
        below, above = (change / original_score for change in unseen)
        low, values.recovery_high = widened(values.recovery, drawn, (below, above))
        values.recovery_low = max(0.0, low)
    values.verdict = verdict(values)
    return values


def are_right_or_wrong(scores: NDArray[Any]) -> bool:
    """Whether all scores are 0 or 1, so that questions are lost or gained as a whole."""
    return bool(((scores == 0) | (scores == 1)).all())


def unseen_changes(original: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """How much lower and higher the difference may be by changes that no question shows. A
    bootstrap draws none of them: of 16 answers, none of them lost, it makes a certainty."""
    scores = numpy.stack([original, other])
    if scores.min() < 0 or scores.max() > 1:
        return 0.0, 0.0  # how much a question can lose is not known
    most = 1 - ((1 - LEVEL) / 2) ** (1 / len(original))
    return (0.0 if (other < original).any() else most), (0.0 if (other > original).any() else most)


def widened(
    value: float, interval: tuple[float, float], by: tuple[float, float]
) -> tuple[float, float]:
    """The interval with these further errors, which are independent of those in it."""
    low, high = interval
    return value - math.hypot(value - low, by[0]), value + math.hypot(high - value, by[1])


def verdict(values: TaskAccuracy) -> str:
    """There is a loss if more questions are lost than gained and the exact test is significant at
    the level of the intervals. A loss is small with a recovery of at least 98 %. A model is broken
    if the whole interval of its recovery is below a half, or if it no longer answers."""
    lost, gained, p_value = values.lost or 0, values.gained or 0, values.p_value or 0.0
    is_silent = (values.empty_share or 0.0) > MOST_EMPTY >= (values.original_empty_share or 0.0)
    is_loss = lost > gained and p_value < 1 - LEVEL
    high = values.recovery_high
    if is_silent or (is_loss and high is not None and high < BROKEN_RECOVERY):
        return BROKEN
    if not is_loss:
        return NO_LOSS
    is_small = values.recovery is not None and values.recovery >= SMALL_RECOVERY
    return SMALL_LOSS if is_small else LOSS


def joined(answers: list[Answers]) -> Answers:
    """Joins the questions of several tasks; each question has the same weight."""
    if len(answers) == 1:
        return answers[0]
    sizes = [len(task_answers.scores) for task_answers in answers]
    chances = [
        task_answers.chance_score
        for task_answers in answers
        if task_answers.chance_score is not None
    ]
    return Answers(
        metric=f"{len(answers)} tasks",
        scores=numpy.concatenate([task_answers.scores for task_answers in answers]),
        questions=[
            f"{n} {name}"
            for n, task_answers in enumerate(answers)
            for name in task_answers.questions
        ],
        empty_share=float(
            numpy.average([task_answers.empty_share for task_answers in answers], weights=sizes)
        ),
        chance_score=float(numpy.average(chances, weights=sizes))
        if len(chances) == len(answers)
        else None,
    )


def sign_test(lost: int, gained: int) -> float:
    """The two-sided p-value of McNemar's exact test: the probability that chance splits the
    changed questions at least as unevenly."""
    total = lost + gained
    ways = tail = 1
    for count in range(min(lost, gained)):
        ways = ways * (total - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << total))


def _short(score: float) -> float:
    """A score of 1.0 is written as 1: a row may have thousands of them."""
    return int(score) if score.is_integer() else score


def _bootstrap_sums(columns: NDArray[Any], seed: int) -> NDArray[Any]:
    """Sums of each column over questions drawn with replacement, one row per draw. Questions with
    equal scores are drawn as one kind, which saves memory."""
    kinds, counts = numpy.unique(columns.astype(float), axis=0, return_counts=True)
    generator = numpy.random.default_rng(seed)
    drawn = generator.multinomial(len(columns), counts / counts.sum(), DRAWS)
    sums: NDArray[Any] = drawn @ kinds
    return sums


def _interval(values: NDArray[Any]) -> tuple[float, float]:
    low, high = numpy.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
