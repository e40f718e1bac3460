"""Two checkpoints on the same text or the same questions, in pairs."""

import numpy
import pytest

from evaluate.accuracy.pairs import (
    BETTER,
    BOTH_BROKEN,
    EQUAL,
    NOT_KEPT,
    OTHER_ENGINE,
    OTHER_ORIGINAL,
    OTHER_QUESTIONS,
    OTHER_TEXT,
    SAME_RESULT,
    TOO_FEW,
    WORSE,
    Side,
    accuracy_pairs,
    compared,
)
from evaluate.accuracy.ranks import rank_ranges
from tests.evaluate.accuracy.made_rows import (
    LATER,
    TOKENS,
    block_row,
    broken_row,
    original_row,
    quick_row,
    task_row,
)


def test_blocks_are_those_of_the_published_figures() -> None:
    values = quick_row("w8", 0.01, 1).values
    assert len(values.block_losses) == len(values.block_divergences) == TOKENS // 64
    assert values.recovery == pytest.approx(numpy.exp(-numpy.mean(values.block_losses)), rel=1e-4)
    assert values.divergence_mean == pytest.approx(numpy.mean(values.block_divergences), abs=1e-5)


def test_pairs_show_what_two_intervals_hide() -> None:
    """The intervals against the original overlap; the difference of the two is significant."""
    one, other = quick_row("a", 0.010, 1), quick_row("b", 0.004, 2)
    assert one.values.recovery_high > other.values.recovery_low
    quality, divergence = compared((one, other))
    assert (quality.verdict, divergence.verdict) == (BETTER, BETTER)
    assert quality.quality is not None
    assert quality.quality.share == pytest.approx(numpy.exp(0.006), abs=0.003)
    assert quality.quality.low > 1
    back, _ = compared((other, one))
    assert back.verdict == WORSE


def test_equal_checkpoints_seldom_differ() -> None:
    alarms = 0
    for seed in range(0, 200, 2):
        quality, _ = compared((block_row("a", seed), block_row("b", seed + 1)))
        alarms += quality.verdict != EQUAL
    assert alarms <= 5  # of 100, at a level of 99 %


def test_the_original_is_the_first_or_the_second() -> None:
    row = quick_row("w8", 0.02, 1)
    original = original_row(row.values.original_perplexity)
    forward, back = compared((original, row))[0], compared((row, original))[0]
    assert (forward.verdict, back.verdict) == (WORSE, BETTER)
    assert forward.quality is not None
    assert forward.quality.share == pytest.approx(row.values.recovery, rel=1e-4)


def test_what_cannot_be_compared_says_why() -> None:
    row, old = quick_row("w8", 0.01, 1), quick_row("w4", 0.01, 2)
    old.values.block_losses = []
    assert compared((row, old))[0].verdict == NOT_KEPT
    assert compared((row, quick_row("w4", 0.01, 2, text=5)))[0].verdict == OTHER_TEXT
    assert compared((row, quick_row("w4", 0.01, 2, window=256)))[0].verdict == OTHER_TEXT
    assert compared((row, row))[0].verdict == SAME_RESULT
    tasks = task_row("w8", [1] * 20), task_row("w4", [1] * 20, asked="other")
    assert compared(tasks)[0].verdict == OTHER_QUESTIONS


def test_questions_are_compared_one_by_one() -> None:
    one, other = task_row("a", [1, 0] * 50 + [1] * 100), task_row("b", [1] * 200)
    (line,) = compared((one, other))
    assert line.verdict == BETTER
    assert line.change == "+25.0 points (50 gained, 0 lost)"
    (level,) = compared((one, task_row("c", [0, 1] * 50 + [1] * 100)))
    assert level.verdict == EQUAL


def test_a_broken_checkpoint_is_worse() -> None:
    row, broken = quick_row("w8", 0.01, 1), broken_row("w2", 2)
    broken.environment.engine = "vllm"
    pairs, _ = accuracy_pairs([row], [broken], (Side("w8"), Side("w2")))
    (line,) = compared(pairs[0])
    assert (line.first, line.second, line.verdict) == ("works", "broken", WORSE)
    (both,) = compared((broken_row("w2", 1), broken_row("w2", 2, LATER)))
    assert both.verdict == BOTH_BROKEN


def test_two_originals_are_no_pair() -> None:
    """Their rows have no blocks: every gate on two files of real runs failed."""
    one, other = original_row(10.0), original_row(10.0, LATER)
    assert accuracy_pairs([one], [other]) == ([], [])


def test_a_row_is_paired_with_one_of_the_same_text() -> None:
    one = block_row("w8", 1)
    others = [block_row("w8", 2, time=LATER), block_row("w8", 3, text="u", count=64, time=LATER)]
    for second in (others, others[::-1]):
        ((_, other),), unmatched = accuracy_pairs([one], second)
        assert other is others[0]
        assert not unmatched
    tasks = [task_row("w8", [1] * 30), task_row("w8", [1] * 20, asked="other")]
    ((_, same),), _ = accuracy_pairs([task_row("w8", [0] + [1] * 29)], tasks)
    assert same is tasks[0]


def test_of_several_rows_that_of_the_same_kernels_then_the_newest_is_paired() -> None:
    options = {"engine": "vllm", "engine_options": {"kernels": "auto"}}
    one = block_row("w8", 1, engine="vllm")
    newest = block_row("w8", 3, engine="vllm", time=LATER)
    second = [newest, block_row("w8", 2, engine="vllm"), block_row("w8", 4, time=LATER, **options)]
    ((_, other),), _ = accuracy_pairs([one], second)
    assert other is newest
    sides = Side("w8", frozenset({"vllm"})), Side("w8", frozenset({"auto"}))
    ((first, other),), _ = accuracy_pairs(second[::2], second, sides)
    assert (first, other) == (newest, second[2])


def test_rows_without_a_partner_are_returned() -> None:
    rows = [block_row("w8", 1), task_row("w8", [1] * 20), block_row("w4", 2)]
    pairs, unmatched = accuracy_pairs(rows, [block_row("w8", 3, time=LATER)])
    assert [pair[0] for pair in pairs] == rows[:1]
    assert unmatched == rows[1:]


def test_another_engine_is_no_comparison_and_says_so() -> None:
    one, other = (
        block_row("w8", 1, engine="vllm"),
        block_row("w8", 2, time=LATER, engine="transformers"),
    )
    ((_, found),), unmatched = accuracy_pairs([one], [other])
    assert not unmatched
    assert compared((one, found))[0].verdict == OTHER_ENGINE


def test_another_checkpoint_of_the_same_name_is_another_side() -> None:
    rows = [block_row("w8", seed, checkpoint_sha256=sha) for seed, sha in ((1, "a"), (2, "b"))]
    sides = tuple(Side("w8", frozenset({"vllm"}), frozenset({sha})) for sha in ("a", "b"))
    pairs, _ = accuracy_pairs(rows, rows, (sides[0], sides[1]))
    assert pairs == [(rows[0], rows[1])]


def test_blocks_of_two_originals_are_not_compared() -> None:
    """A loss is relative to the original that its row was judged against."""
    one, other = quick_row("w8", 0.01, 1), quick_row("w8_new", 0.01, 2)
    assert compared((one, other))[0].verdict != OTHER_ORIGINAL
    for name in ("perplexity", "original_perplexity"):
        setattr(other.values, name, 1.02 * getattr(other.values, name))
    assert [line.verdict for line in compared((one, other))] == [OTHER_ORIGINAL]
    assert compared((original_row(one.values.original_perplexity), other))[0].verdict == (
        OTHER_ORIGINAL
    )


@pytest.mark.parametrize("few", [1, 2, 15])
def test_few_blocks_or_questions_say_nothing(few: int) -> None:
    texts = block_row("a", 1, 0.0, count=few), block_row("b", 2, 0.3, count=few)
    asked = task_row("a", [1] * few), task_row("b", [1] * few)
    assert [line.verdict for pair in (texts, asked) for line in compared(pair)] == [TOO_FEW] * 2


def test_intervals_of_few_blocks_are_as_wide_as_they_say() -> None:
    alarms = 0
    for seed in range(0, 2000, 2):
        quality, _ = compared((block_row("a", seed, count=16), block_row("b", seed + 1, count=16)))
        alarms += quality.verdict != EQUAL
    assert alarms <= 20  # of 1,000, at a level of 99 %


def test_scores_between_0_and_1_are_judged_by_their_mean() -> None:
    """60 questions gain a little and 10 lose all: the sign test alone calls that better."""
    one = task_row("a", [0.50] * 60 + [1.0] * 10 + [1.0] * 130)
    other = task_row("b", [0.51] * 60 + [0.0] * 10 + [1.0] * 130)
    (line,) = compared((one, other))
    assert line.verdict == WORSE
    assert line.quality is not None
    assert line.quality.high < 1
    ranges = rank_ranges([one, other])
    assert [str(ranges[id(row)]) for row in (one, other)] == ["1", "2"]
    assert compared((other, one))[0].verdict == BETTER


def test_scores_below_zero_have_no_recovery() -> None:
    rows = task_row("a", [-1.0] * 20), task_row("b", [-2.0] * 20)
    for row in rows:
        row.values.verdict = "loss"
    (line,) = compared(rows)
    assert (line.verdict, line.quality) == (WORSE, None)


def test_a_huge_gain_is_no_error() -> None:
    one, other = block_row("a", 1, 1000.0), block_row("b", 2, -1000.0)
    assert compared((one, other))[0].verdict == BETTER
    assert compared((other, one))[0].verdict == WORSE
