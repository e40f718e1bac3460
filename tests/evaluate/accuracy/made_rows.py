"""Accuracy rows for tests of comparisons in pairs."""

from typing import Any

import numpy

from evaluate.accuracy import answers
from evaluate.accuracy.divergence import paired_values
from evaluate.measure.text_view import TextView
from evaluate.results.rows import AccuracyRow, QuickAccuracyRow, TaskAccuracyRow
from tests.evaluate.made_rows import row_with

TOKENS = 8192
TIME, LATER = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"


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


def original_row(perplexity: float, time: str = TIME) -> AccuracyRow:
    """As every run writes it: without a comparison, and so without blocks."""
    return row_with(
        QuickAccuracyRow,
        checkpoint="original",
        measure="quick",
        key="original",
        time=time,
        values={"perplexity": perplexity, "tokens": TOKENS},
        settings={"window": 512},
        environment={"engine": "vllm", "checkpoint_sha256": "original"},
    )


def block_row(
    name: str,
    seed: int,
    mean: float = 0.01,
    text: str = "t",
    count: int = TOKENS // 64,
    time: str = TIME,
    **environment: Any,
) -> AccuracyRow:
    """Blocks alone, which are quick to make: the mean is lost, with noise that is its own."""
    losses = numpy.random.default_rng(seed).normal(mean, 0.02, count).tolist()
    return row_with(
        QuickAccuracyRow,
        checkpoint=name,
        measure="quick",
        key=f"{name} {seed} {text} {environment}",
        time=time,
        values={
            "verdict": "no loss seen",
            "text_sha256": text,
            "block_losses": losses,
            "block_divergences": losses,
        },
        environment=environment,
    )


def broken_row(name: str, seed: int, time: str = TIME) -> AccuracyRow:
    row = block_row(name, seed, time=time)
    row.values = row.values.model_validate({"verdict": "broken"})
    row.invalid = ["perplexity is no number"]
    return row


def task_row(name: str, right: list[float], asked: str = "q") -> TaskAccuracyRow:
    """Scores of questions: 0 or 1, or a share as of F1."""
    names = [f"{asked} {number}" for number in range(len(right))]
    original = answers.Answers("acc,none", numpy.ones(len(right)), names)
    given = answers.Answers("acc,none", numpy.array(right, float), names)
    return row_with(
        TaskAccuracyRow,
        checkpoint=name,
        measure="questions:arc",
        key=f"{name} {asked} {right}",
        time=TIME,
        values=answers.paired_values(original, given),
        environment={"engine": "vllm", "checkpoint_sha256": name},
    )
