"""Question by question: the arithmetic, its alarms, and what it must not miss."""

from typing import Any

import numpy
import pytest

from conf.errors import QuantlineError
from conf.schema.commands import AccuracyConfig
from evaluate.accuracy.answers import Answers, joined, own_values, paired_values, sign_test
from evaluate.accuracy.divergence import BROKEN, LOSS, NO_LOSS, SMALL_LOSS
from evaluate.accuracy.judging import gate


def answered(scores: Any, empty_share: float = 0.0) -> Answers:
    scores = numpy.asarray(scores, float)
    return Answers("acc,none", scores, [str(n) for n in range(len(scores))], empty_share)


def with_losses(lost: int, gained: int, right: int, wrong: int) -> tuple[Answers, Answers]:
    """An original and another that answers so many of its questions worse and better."""
    original = [1] * right + [0] * wrong
    other = [0] * lost + [1] * (right - lost) + [1] * gained + [0] * (wrong - gained)
    return answered(original), answered(other)


@pytest.mark.parametrize(
    ("lost", "gained", "exact"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 2 / 32),
        (0, 5, 2 / 32),
        (8, 1, 2 * (1 + 9) / 512),
        (12, 0, 2 / 4096),
        (7, 3, 2 * (1 + 10 + 45 + 120) / 1024),
    ],
)
def test_the_exact_test_by_hand(lost: int, gained: int, exact: float) -> None:
    assert sign_test(lost, gained) == pytest.approx(exact, rel=1e-12)


def test_the_exact_test_takes_many_questions() -> None:
    assert 0 <= sign_test(6000, 4000) < 1e-80
    assert sign_test(5000, 5000) == 1


def test_the_same_answers_are_no_loss() -> None:
    original, other = with_losses(0, 0, 30, 10)
    values = paired_values(original, other)
    assert values.verdict == NO_LOSS
    assert (values.lost, values.gained, values.p_value) == (0, 0, 1)
    assert (values.recovery, values.difference) == (1, 0)
    # A model that changes 12.4 % of its answers shows none in one of 200 sets of 40 questions.
    none_shown = (1 - 0.124) ** 40
    assert none_shown == pytest.approx(0.005, rel=0.02)
    bounds = (values.difference_low, values.difference_high)
    assert bounds == pytest.approx((-0.124, 0.124), abs=0.001)
    shares = (values.recovery_low, values.recovery_high)
    assert shares == pytest.approx((1 - 0.124 / 0.75, 1 + 0.124 / 0.75), abs=0.001)


def test_intervals_agree_with_the_exact_test() -> None:
    """Ten lost of 200 are significant, although none was gained."""
    values = paired_values(*with_losses(10, 0, 110, 80))
    assert values.p_value is not None
    assert values.p_value < 0.01
    for high, none in ((values.difference_high, 0), (values.recovery_high, 1)):
        assert high is not None
        assert high < none


def test_one_score_between_0_and_1_makes_no_certainty() -> None:
    scores = numpy.array([1.0] * 15 + [0.5])
    values = paired_values(*(Answers("f1,none", scores, ["q"]) for _ in range(2)))
    assert values.recovery_low is not None
    assert values.recovery_low < 0.8


@pytest.mark.parametrize(
    ("pair", "verdict"),
    [
        (with_losses(3, 0, 80, 20), NO_LOSS),  # three questions may be chance
        (with_losses(10, 9, 80, 20), NO_LOSS),
        (with_losses(0, 20, 80, 20), NO_LOSS),  # better is no loss
        (with_losses(60, 10, 4000, 1000), SMALL_LOSS),
        (with_losses(20, 2, 160, 40), LOSS),
        (with_losses(150, 2, 160, 40), BROKEN),
        (with_losses(4, 0, 4, 0), NO_LOSS),  # all of four: too few to say anything
    ],
)
def test_verdicts(pair: tuple[Answers, Answers], verdict: str) -> None:
    assert paired_values(*pair).verdict == verdict


def test_one_that_no_longer_answers_is_broken() -> None:
    original, other = with_losses(3, 0, 3, 40)
    other.empty_share = 0.9
    assert paired_values(original, other).verdict == BROKEN
    original.empty_share = 0.9
    assert paired_values(original, other).verdict == NO_LOSS, "the original was as silent"


def test_equal_models_raise_an_alarm_as_seldom_as_stated() -> None:
    """Two models of the same quality that disagree on a fifth of the questions."""
    alarms = 0
    for seed in range(400):
        chance = numpy.random.default_rng(seed)
        original = chance.random(200) < 0.7
        again = chance.random(200) < 0.7
        other = numpy.where(chance.random(200) < 0.4, again, original)
        alarms += paired_values(answered(original), answered(other), seed).verdict != NO_LOSS
    assert alarms <= 4


def test_a_real_loss_is_found() -> None:
    """A tenth of the right answers gone, with as much disagreement beside it."""
    found = 0
    for seed in range(100):
        chance = numpy.random.default_rng(seed)
        original = chance.random(400) < 0.7
        noise = chance.random(400) < 0.05
        other = numpy.where(noise, ~original, original) & (chance.random(400) > 0.1)
        found += paired_values(answered(original), answered(other), seed).verdict == LOSS
    assert found >= 90


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(200):
        chance = numpy.random.default_rng(seed)
        original = chance.random(500) < 0.8
        other = original & (chance.random(500) < 0.9)
        values = paired_values(answered(original), answered(other), seed)
        hits += values.recovery_low <= 0.9 <= values.recovery_high
    assert hits >= 194


@pytest.mark.parametrize(
    ("questions", "loss", "changed"),
    [
        (140, 0.1, 0.01),
        (540, 0.05, 0.03),
        (730, 0.05, 0.05),
        (3600, 0.02, 0.05),
        (3700, 0.01, 0.01),
    ],
)
def test_so_many_questions_show_a_loss_in_four_of_five_cases(
    questions: int, loss: float, changed: float
) -> None:
    """The table in docs/accuracy.md."""
    shares = [changed + loss, changed, 1 - 2 * changed - loss]
    draws = numpy.random.default_rng(0).multinomial(questions, shares, 500)
    seen = [lost > gained and sign_test(int(lost), int(gained)) < 0.01 for lost, gained, _ in draws]
    assert 0.75 < numpy.mean(seen) < 0.87


def test_scores_between_right_and_wrong_are_compared_too() -> None:
    chance = numpy.random.default_rng(0)
    scores = chance.random(100)
    values = paired_values(answered(scores), answered(scores * 0.9))
    assert values.lost == 100
    assert values.recovery == pytest.approx(0.9)
    assert values.verdict == LOSS


def test_what_cannot_be_compared_is_refused() -> None:
    original, other = with_losses(1, 1, 5, 5)
    other.questions[3] = "another"
    with pytest.raises(QuantlineError, match="different questions"):
        paired_values(original, other)


def test_an_original_without_a_right_answer_has_nothing_to_lose() -> None:
    values = paired_values(answered([0, 0]), answered([0, 1]))
    assert values.verdict == NO_LOSS
    assert values.recovery is None


def test_the_tasks_of_a_group_count_as_one() -> None:
    pairs = [with_losses(5, 0, 30, 10), with_losses(6, 1, 10, 10)]
    original, other = (joined(list(side)) for side in zip(*pairs, strict=True))
    values = paired_values(original, other)
    assert (values.questions, values.lost, values.gained) == (60, 11, 1)
    assert values.original_score == pytest.approx(40 / 60)
    assert len(set(original.questions)) == 60


def test_one_model_alone_has_a_score_and_an_interval() -> None:
    values = own_values(answered([1, 1, 1, 0]))
    assert values.score == 0.75
    assert values.score_low < 0.75 < values.score_high
    assert values.questions == 4
    assert values.verdict is None


def test_the_gate_takes_these_values() -> None:
    some = paired_values(*with_losses(3, 0, 80, 20))
    assert gate(some, AccuracyConfig()) is None
    failed = gate(some, AccuracyConfig(min_recovery=0.99))
    assert failed is not None
    assert failed.exit_code == 4
    assert "0.9625 of the original's quality is left" in str(failed)
    broken = gate(paired_values(*with_losses(150, 2, 160, 40)), AccuracyConfig())
    assert "the model is broken, score 0.06" in str(broken)
