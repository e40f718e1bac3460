"""Two checkpoints on the same text or the same questions, in pairs."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from conf.errors import BAD_INPUT, GATE_FAILED, UNDECIDED
from evaluate.accuracy import answers
from evaluate.accuracy.divergence import paired_values
from evaluate.accuracy.pairs import (
    BETTER,
    EQUAL,
    NOT_KEPT,
    OTHER_QUESTIONS,
    OTHER_TEXT,
    SAME_RESULT,
    WORSE,
    accuracy_pairs,
    compared,
    rank_ranges,
)
from evaluate.measure.text_view import TextView
from evaluate.results.rows import AccuracyRow, QuickAccuracyRow, TaskAccuracyRow
from tests.conftest import Run
from tests.evaluate.made_rows import row_with
from tests.evaluate.report.made import Cell, runs, write

TOKENS = 8192
TIME = "2026-01-01T00:00:00+00:00"


def view(lost: numpy.typing.NDArray[Any], text: int = 0) -> TextView:
    """A view of a text whose difficulty varies much more than what checkpoints lose."""
    tokens = numpy.random.default_rng(text).integers(0, 1000, TOKENS)
    hard = numpy.random.default_rng(text + 1).exponential(3.0, TOKENS)
    likely = numpy.stack([tokens, tokens + 1], 1)
    scores = numpy.log(numpy.stack([numpy.full(TOKENS, 0.6), numpy.full(TOKENS, 0.3)], 1))
    return TextView(
        tokens, -hard - lost, likely, scores - lost[:, None], numpy.zeros((0, 0), dtype=int)
    )


def quick_row(name: str, mean: float, seed: int, text: int = 0, **settings: Any) -> AccuracyRow:
    """Both checkpoints of a test lose much where the original is unsure, and a bit of their own."""
    shared = numpy.abs(numpy.random.default_rng(99).normal(0.0, 0.4, TOKENS))
    own = numpy.random.default_rng(seed).normal(mean, 0.05, TOKENS)
    judgement = paired_values(view(numpy.zeros(TOKENS), text), view(shared + own, text))
    return row_with(
        QuickAccuracyRow,
        checkpoint=name,
        measure="quick",
        key=f"{name} {seed} {text}",
        time=TIME,
        values=judgement.values,
        settings={"window": 512} | settings,
        environment={"engine": "vllm", "checkpoint_sha256": name},
    )


def block_row(name: str, seed: int) -> AccuracyRow:
    """Blocks alone, which are quick to make: 0.01 nats lost, with noise that is its own."""
    losses = numpy.random.default_rng(seed).normal(0.01, 0.02, TOKENS // 64).tolist()
    return row_with(
        QuickAccuracyRow,
        checkpoint=name,
        measure="quick",
        key=f"{name} {seed}",
        time=TIME,
        values={"text_sha256": "t", "block_losses": losses, "block_divergences": losses},
    )


def task_row(name: str, right: list[int], asked: str = "q") -> TaskAccuracyRow:
    names = [f"{asked} {number}" for number in range(len(right))]
    original = answers.Answers("acc,none", numpy.ones(len(right)), names)
    given = answers.Answers("acc,none", numpy.array(right, float), names)
    return row_with(
        TaskAccuracyRow,
        checkpoint=name,
        measure="questions:arc",
        key=f"{name} {asked} {sum(right)}",
        time=TIME,
        values=answers.paired_values(original, given),
        environment={"engine": "vllm", "checkpoint_sha256": name},
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
    original = quick_row("original", 0.0, 3)
    original.values = original.values.model_validate({"perplexity": 10.0, "tokens": TOKENS})
    row = quick_row("w8", 0.02, 1)
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


def test_a_broken_checkpoint_is_worse() -> None:
    row, broken = quick_row("w8", 0.01, 1), quick_row("w2", 0.01, 2)
    broken.values = broken.values.model_validate({"verdict": "broken"})
    broken.invalid = ["perplexity is no number"]
    ((one, other),) = accuracy_pairs([row], [broken], ["w8", "w2"])
    (line,) = compared((one, other))
    assert (line.first, line.second, line.verdict) == ("works", "broken", WORSE)


def test_results_without_runs_are_compared_by_their_accuracy(
    command_here: Run, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", [quick_row("w8", 0.010, 1), task_row("w8", [1] * 30)])
    write(tmp_path / "b.jsonl", [quick_row("w8", 0.004, 2), task_row("w8", [1] * 29 + [0])])
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]", "min_quality=1")
    assert "better" in result.stdout
    assert "questions:arc" in result.stdout
    assert result.returncode == UNDECIDED
    assert "w8 in questions:arc: 96.67% of the first one's quality" in result.stderr
    back = command_here("evaluate.compare", "results=[b.jsonl,a.jsonl]", "min_quality=0.999")
    assert back.returncode == GATE_FAILED
    assert "w8 in quick: 99.5" in back.stderr
    lines = [quick_row("w8", 0.010, 1), quick_row("w4", 0.004, 2)]
    write(tmp_path / "both.jsonl", lines)
    both = ("results=[both.jsonl]", "checkpoints=[w8,w4]", "min_quality=0.99")
    assert command_here("evaluate.compare", *both).returncode == 0
    wrong = command_here("evaluate.compare", "results=[both.jsonl]", "checkpoints=[w8,w5]")
    assert wrong.returncode == BAD_INPUT
    assert "w5" in wrong.stderr


def test_a_gate_on_quality_needs_one_that_was_judged(command_here: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = runs(Cell("w8", [1.0, 1.001, 0.999] if name == "a" else [0.7, 0.701, 0.699]))
        write(tmp_path / f"{name}.jsonl", rows)
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]", "min_quality=0.99")
    assert result.returncode == UNDECIDED
    assert "no accuracy of both was judged alike" in result.stderr
