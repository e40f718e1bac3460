"""The ranks of checkpoints by accuracy."""

import time
from typing import Any

import numpy
import pytest

from evaluate.accuracy.answers import sign_test
from evaluate.accuracy.ranks import _sign_chances, rank_ranges
from evaluate.results.rows import AccuracyRow
from tests.evaluate.accuracy.made_rows import (
    LATER,
    block_row,
    broken_row,
    quick_row,
    task_row,
)


def ranks(*rows: AccuracyRow) -> list[str | None]:
    ranges = rank_ranges(rows)
    return [str(ranges[id(row)]) if id(row) in ranges else None for row in rows]


def test_ranks_are_those_that_the_pairs_leave_open() -> None:
    rows = [quick_row("a", 0.004, 1), quick_row("b", 0.0041, 2), quick_row("c", 0.03, 3)]
    ranges = rank_ranges([quick_row("original", 0.0, 9), *rows])
    assert [str(ranges[id(row)]) for row in rows] == ["1 to 2", "1 to 2", "3"]
    rows[1].values.block_losses = []
    assert rank_ranges(rows) == {}


def test_of_nine_equal_checkpoints_none_is_ranked_alone() -> None:
    """36 pairs, each at a level of 99 %, would name a better one in every third report."""
    alarms = 0
    for seed in range(0, 90, 9):
        rows = [block_row(str(n), seed + n) for n in range(9)]
        alarms += any(str(found) != "1 to 9" for found in rank_ranges(rows).values())
    assert alarms == 0  # of ten


def test_ranks_by_answers() -> None:
    rows = [
        task_row(name, [0] * wrong + [1] * (200 - wrong))
        for name, wrong in zip("abc", (0, 2, 40), strict=True)
    ]
    assert ranks(*rows) == ["1 to 2", "1 to 2", "3"]


@pytest.mark.parametrize(
    "others", [{"device": "A100"}, {"versions": {"vllm": "0.26"}}, {"engine": "transformers"}]
)
def test_ranks_are_those_of_one_device_and_engine(others: dict[str, Any]) -> None:
    here = {"device": "H200", "versions": {"vllm": "0.25"}, "engine": "vllm"}
    rows = [
        block_row(name, seed + 10 * number, mean, **where)
        for number, where in enumerate((here, here | others))
        for seed, (name, mean) in enumerate((("a", 0.0), ("b", 0.1)))
    ]
    assert ranks(*rows) == ["1", "2", "1", "2"]


def test_each_checkpoint_has_one_rank() -> None:
    older, newer = block_row("a", 1), block_row("a", 2, time=LATER)
    assert ranks(older, newer, block_row("b", 3, 0.1)) == [None, "1", "2"]
    assert ranks(newer, older, block_row("b", 3, 0.1)) == ["1", None, "2"]


def test_a_row_on_another_text_takes_no_ranks() -> None:
    rows = [block_row("a", 1), block_row("b", 2, 0.1), block_row("a", 3, text="u", time=LATER)]
    assert ranks(*rows) == ["1", "2", None]
    assert ranks(rows[0], block_row("b", 2, text="u")) == [None, None]


def test_broken_checkpoints_are_last() -> None:
    rows = [block_row("a", 1), broken_row("b", 2), block_row("c", 3, 0.1), broken_row("d", 4)]
    assert ranks(*rows) == ["1", "3 to 4", "2", "3 to 4"]


def test_rows_of_two_originals_have_no_ranks() -> None:
    rows = [quick_row("a", 0.004, 1), quick_row("b", 0.03, 2)]
    assert ranks(*rows) == ["1", "2"]
    rows[1].values.original_perplexity *= 1.02
    assert ranks(*rows) == [None, None]


@pytest.mark.parametrize("count", [7, 15, 16, 31])
def test_few_blocks_seldom_rank_equal_checkpoints(count: int) -> None:
    alarms = 0
    for seed in range(0, 900, 9):
        rows = [block_row(str(n), seed + n, count=count) for n in range(9)]
        found = rank_ranges(rows)
        assert bool(found) == (count >= 16)
        alarms += any(str(rank) != "1 to 9" for rank in found.values())
    assert alarms <= 3  # of 100; with a normal distribution, 18 for 15 blocks


def test_ranks_use_the_exact_test() -> None:
    counts = [(lost, gained) for lost in range(40) for gained in range(40)] + [(900, 1100)]
    lost, gained = numpy.array(counts).T
    expected = [sign_test(*pair) for pair in counts]
    assert _sign_chances(lost, gained) == pytest.approx(expected, rel=1e-9)


def test_a_hundred_checkpoints_take_no_time() -> None:
    texts = [block_row(f"c{n}", n, n / 10_000, count=256) for n in range(100)]
    chance = numpy.random.default_rng(0)
    right = chance.random(14_000) < 0.7
    asked = [task_row(f"c{n}", [1] * 16) for n in range(100)]
    for number, row in enumerate(asked):
        scores = right ^ (chance.random(14_000) < 0.05 + 0.002 * number)
        row.values = row.values.with_fields(scores=scores.astype(int).tolist())
    began = time.process_time()
    assert len(rank_ranges([*texts, *asked])) == 200
    assert time.process_time() - began < 5
