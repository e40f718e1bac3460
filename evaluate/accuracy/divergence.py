"""Compares two models' predictions for the same text, token by token: pure array arithmetic.

A model's view of a text has, for every position, the log-probability of the text's token and of
the model's most likely tokens. Two views of the same tokens are compared in pairs, so that the
difficulty of the text cancels out.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.errors import bad_input
from conf.files.tokenizer_file import read_tokenizer
from evaluate.accuracy import verdicts
from evaluate.measure.text_view import TextView
from evaluate.results.row_values import Position, QuickAccuracy

BLOCK = 64  # tokens per bootstrap block, because neighbours share their context
BLOCK_DECIMALS = 5  # nats; two runs of one engine differ by more
DRAWS = 2000
LEVEL = 0.99  # of the confidence intervals, and so of a verdict
AT_ONCE = 1024
SMALLEST = 1e-9
WORST = 5
CONTEXT = 24  # tokens shown before a position

NO_LOSS, SMALL_LOSS, LOSS, BROKEN = VERDICTS = verdicts.VERDICTS
# Bounds of the verdicts. Recovery is the original's perplexity over the checkpoint's; divergence is
# a mean in nats.
SMALL_RECOVERY, BROKEN_RECOVERY = 0.98, verdicts.BROKEN_RECOVERY
NO_DIVERGENCE, SMALL_DIVERGENCE = 0.01, 0.1
BROKEN_DIVERGENCE = verdicts.BROKEN_DIVERGENCE
NEGLIGIBLE = 0.0005  # nats: less than the difference between two runs of one engine


@dataclass
class Judgement:
    """The accuracy of a checkpoint, and why it must not be ranked: values that are not finite."""

    values: QuickAccuracy
    invalid: list[str]


def own_values(view: TextView) -> Judgement:
    """The accuracy of one view without a comparison."""
    return _judgement(_own_figures(view))


def _own_figures(view: TextView) -> dict[str, float]:
    return {"perplexity": view.perplexity, "tokens": float(len(view.tokens))}


def _judgement(figures: dict[str, float], verdict: str | None = None) -> Judgement:
    not_finite = [name for name, figure in figures.items() if not math.isfinite(figure)]
    values = QuickAccuracy.model_validate(
        {name: figure for name, figure in figures.items() if name not in not_finite}
    )
    if verdict is not None:
        values.verdict = verdict
    return Judgement(values, [f"{name} is no number" for name in not_finite])


def paired_values(original: TextView, other: TextView, seed: int = 0) -> Judgement:
    """The other view compared with the original's, with confidence intervals and a verdict."""
    if not numpy.array_equal(original.tokens, other.tokens):
        raise bad_input("accuracy: the two models were judged on different tokens")
    figures = _own_figures(other) | {"original_perplexity": original.perplexity}
    if not (numpy.isfinite(other.chosen).all() and numpy.isfinite(other.scores).all()):
        return _judgement(figures, BROKEN)
    losses = original.chosen.astype(float) - other.chosen.astype(float)
    divergence = divergences(original, other)
    loss_low, loss_high = interval(losses, seed)
    divergence_low, divergence_high = interval(divergence, seed)
    same = original.likely[:, 0] == other.likely[:, 0]
    agreed = agreements(original.continuations, other.continuations)
    figures |= {
        "recovery": float(numpy.exp(-losses.mean())),
        "recovery_low": float(numpy.exp(-loss_high)),
        "recovery_high": float(numpy.exp(-loss_low)),
        "divergence_mean": float(divergence.mean()),
        "divergence_low": divergence_low,
        "divergence_high": divergence_high,
        "divergence_p99": float(numpy.quantile(divergence, 0.99)),
        "same_top_share": float(same.mean()),
        "interval": LEVEL,
    }
    if len(agreed):
        figures |= {
            "agreed_tokens_mean": float(agreed.mean()),
            "continued_tokens": float(original.continuations.shape[1]),
        }
    verdict_text = verdict(figures["recovery"], figures["divergence_mean"], loss_low)
    judgement = _judgement(figures, verdict_text)
    judgement.values.text_sha256 = hashlib.sha256(
        original.tokens.astype("<i8").tobytes()
    ).hexdigest()
    judgement.values.block_losses = block_means(losses).round(BLOCK_DECIMALS).tolist()
    judgement.values.block_divergences = block_means(divergence).round(BLOCK_DECIMALS).tolist()
    return judgement


def verdict(recovery: float, divergence: float, loss_low: float) -> str:
    """The worse of two verdicts: by the loss on the text itself, and by the divergence of the
    distributions."""
    if recovery < BROKEN_RECOVERY or divergence > BROKEN_DIVERGENCE:
        return BROKEN
    is_loss = loss_low > 0 and -numpy.log(recovery) > NEGLIGIBLE
    if (is_loss and recovery < SMALL_RECOVERY) or divergence > SMALL_DIVERGENCE:
        return LOSS
    return SMALL_LOSS if is_loss or divergence > NO_DIVERGENCE else NO_LOSS


def divergences(original: TextView, other: TextView) -> NDArray[Any]:
    """Kullback-Leibler divergence at every position. It covers the tokens that both models find
    likely, with all others taken as one. So it is a lower bound of the divergence over the whole
    vocabulary."""
    chunks = []
    for start in range(0, len(original.tokens), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        same = original.likely[rows, :, None] == other.likely[rows, None, :]
        shared = same.any(axis=2)
        place = same.argmax(axis=2)
        original_p = numpy.exp(original.scores[rows].astype(float)) * shared
        other_p = (
            numpy.exp(numpy.take_along_axis(other.scores[rows].astype(float), place, 1)) * shared
        )
        original_rest = numpy.maximum(1 - original_p.sum(1), SMALLEST)
        other_rest = numpy.maximum(1 - other_p.sum(1), SMALLEST)
        terms = numpy.where(
            shared,
            original_p
            * numpy.log(numpy.maximum(original_p, SMALLEST) / numpy.maximum(other_p, SMALLEST)),
            0,
        )
        chunks.append(terms.sum(1) + original_rest * numpy.log(original_rest / other_rest))
    divergences: NDArray[Any] = numpy.maximum(numpy.concatenate(chunks), 0)
    return divergences


def block_means(values: NDArray[Any]) -> NDArray[Any]:
    """The mean of each block of neighbouring tokens."""
    count = max(1, len(values) // BLOCK)
    return numpy.array([block.mean() for block in numpy.array_split(values, count)])


def interval(values: NDArray[Any], seed: int) -> tuple[float, float]:
    """Bootstrap interval of the mean over tokens, drawn in blocks of neighbours."""
    blocks = block_means(values)
    count = len(blocks)
    generator = numpy.random.default_rng(seed)
    means = blocks[generator.integers(0, count, (DRAWS, count))].mean(axis=1)
    low, high = numpy.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def agreements(original: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """For each opening, the number of tokens before the two continuations differ."""
    if original.size == 0 or original.shape != other.shape:
        return numpy.zeros(0)
    different = original != other
    first = different.argmax(axis=1)
    return numpy.where(different.any(axis=1), first, original.shape[1])


def worst_positions(original: TextView, other: TextView, tokenizer: Path) -> list[Position]:
    """The positions with the largest divergence, as text."""
    reader = read_tokenizer(tokenizer)
    divergence = divergences(original, other)
    positions = []
    for place in numpy.argsort(-divergence)[:WORST]:
        before = original.tokens[max(0, place - CONTEXT) : place]
        tokens = [original.tokens[place], original.likely[place, 0], other.likely[place, 0]]
        actual, original_token, other_token = (reader.decode([int(token)]) for token in tokens)
        positions.append(
            Position(
                divergence=float(divergence[place]),
                before=reader.decode([int(token) for token in before]),
                stands_there=actual,
                original_expects=original_token,
                it_expects=other_token,
            )
        )
    return positions
