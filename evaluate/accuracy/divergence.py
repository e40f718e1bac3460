"""How much of the original is left, token by token on the same text: pure arithmetic on arrays.

A model's view of a text is, for every position, the log-probability of the token that stands there
and of the tokens it finds most likely. Two views of the same tokens are compared in pairs, so that
what is hard about the text cancels out.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.errors import bad_input
from evaluate.accuracy import verdicts
from evaluate.measure.text_view import TextView
from evaluate.results.row_values import Position, QuickAccuracy

BLOCK = 64  # neighbouring tokens share their context: they are drawn together
DRAWS = 2000
LEVEL = 0.99  # of the intervals, and so of a verdict
AT_ONCE = 1024
SMALLEST = 1e-9
WORST = 5
CONTEXT = 24  # tokens shown before a position

NO_LOSS, SMALL_LOSS, LOSS, BROKEN = VERDICTS = verdicts.VERDICTS
# Share of the original's quality (its perplexity over the new one) and mean divergence, in nats,
# below and above which a loss is no longer small, and a checkpoint broken.
SMALL_RECOVERY, BROKEN_RECOVERY = 0.98, verdicts.BROKEN_RECOVERY
NO_DIVERGENCE, SMALL_DIVERGENCE = 0.01, 0.1
BROKEN_DIVERGENCE = verdicts.BROKEN_DIVERGENCE
NEGLIGIBLE = 0.0005  # nats: below what two runs of one engine differ by


@dataclass
class Judgement:
    """What is said of a checkpoint, and why it must not be ranked where a figure is no number."""

    values: QuickAccuracy
    invalid: list[str]


def own_values(view: TextView) -> Judgement:
    """What can be said of one view alone."""
    return _judgement(_own_figures(view))


def _own_figures(view: TextView) -> dict[str, float]:
    return {"perplexity": view.perplexity, "tokens": float(len(view.tokens))}


def _judgement(figures: dict[str, float], verdict: str | None = None) -> Judgement:
    strange = [name for name, figure in figures.items() if not math.isfinite(figure)]
    values = QuickAccuracy.model_validate(
        {name: figure for name, figure in figures.items() if name not in strange}
    )
    if verdict is not None:
        values.verdict = verdict
    return Judgement(values, [f"{name} is no number" for name in strange])


def paired_values(original: TextView, other: TextView, seed: int = 0) -> Judgement:
    """The other view against the original's, with intervals, and a verdict."""
    if not numpy.array_equal(original.tokens, other.tokens):
        raise bad_input("accuracy: the two models were judged on different tokens")
    figures = _own_figures(other) | {"original_perplexity": original.perplexity}
    if not (numpy.isfinite(other.chosen).all() and numpy.isfinite(other.scores).all()):
        return _judgement(figures, BROKEN)
    losses = original.chosen.astype(float) - other.chosen.astype(float)
    apart = divergences(original, other)
    loss_low, loss_high = interval(losses, seed)
    apart_low, apart_high = interval(apart, seed)
    same = original.likely[:, 0] == other.likely[:, 0]
    agreed = agreements(original.continuations, other.continuations)
    figures |= {
        "recovery": float(numpy.exp(-losses.mean())),
        "recovery_low": float(numpy.exp(-loss_high)),
        "recovery_high": float(numpy.exp(-loss_low)),
        "divergence_mean": float(apart.mean()),
        "divergence_low": apart_low,
        "divergence_high": apart_high,
        "divergence_p99": float(numpy.quantile(apart, 0.99)),
        "same_top_share": float(same.mean()),
        "agreed_tokens_mean": float(agreed.mean()) if len(agreed) else 0.0,
        "continued_tokens": float(original.continuations.shape[1]),
        "interval": LEVEL,
    }
    said = verdict(figures["recovery"], figures["divergence_mean"], loss_low)
    return _judgement(figures, said)


def verdict(recovery: float, apart: float, loss_low: float) -> str:
    """By what is lost on the text itself and by how far the distributions are apart, whichever
    says worse."""
    if recovery < BROKEN_RECOVERY or apart > BROKEN_DIVERGENCE:
        return BROKEN
    lost = loss_low > 0 and -numpy.log(recovery) > NEGLIGIBLE
    if (lost and recovery < SMALL_RECOVERY) or apart > SMALL_DIVERGENCE:
        return LOSS
    return SMALL_LOSS if lost or apart > NO_DIVERGENCE else NO_LOSS


def divergences(original: TextView, other: TextView) -> NDArray[Any]:
    """Kullback-Leibler divergence at every position, over the tokens that both find likely and
    all others as one: never more than the divergence over the whole vocabulary."""
    parts = []
    for start in range(0, len(original.tokens), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        same = original.likely[rows, :, None] == other.likely[rows, None, :]
        both = same.any(axis=2)
        place = same.argmax(axis=2)
        ours = numpy.exp(original.scores[rows].astype(float)) * both
        theirs = numpy.exp(numpy.take_along_axis(other.scores[rows].astype(float), place, 1)) * both
        rest_ours = numpy.maximum(1 - ours.sum(1), SMALLEST)
        rest_theirs = numpy.maximum(1 - theirs.sum(1), SMALLEST)
        terms = numpy.where(
            both,
            ours * numpy.log(numpy.maximum(ours, SMALLEST) / numpy.maximum(theirs, SMALLEST)),
            0,
        )
        parts.append(terms.sum(1) + rest_ours * numpy.log(rest_ours / rest_theirs))
    found: NDArray[Any] = numpy.maximum(numpy.concatenate(parts), 0)
    return found


def interval(values: NDArray[Any], seed: int) -> tuple[float, float]:
    """Bootstrap interval of the mean over blocks of neighbouring tokens."""
    count = max(1, len(values) // BLOCK)
    blocks = numpy.array([part.mean() for part in numpy.array_split(values, count)])
    chance = numpy.random.default_rng(seed)
    means = blocks[chance.integers(0, count, (DRAWS, count))].mean(axis=1)
    low, high = numpy.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def agreements(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
    """For each opening, the tokens for which both continue alike."""
    if ours.size == 0 or ours.shape != theirs.shape:
        return numpy.zeros(0)
    different = ours != theirs
    first = different.argmax(axis=1)
    return numpy.where(different.any(axis=1), first, ours.shape[1])


def worst_positions(original: TextView, other: TextView, tokenizer: Path) -> list[Position]:
    """Where the two are furthest apart, in words."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(tokenizer))
    apart = divergences(original, other)
    found = []
    for place in numpy.argsort(-apart)[:WORST]:
        before = original.tokens[max(0, place - CONTEXT) : place]
        words = [original.tokens[place], original.likely[place, 0], other.likely[place, 0]]
        stands, ours, theirs = (reader.decode([int(token)]) for token in words)
        found.append(
            Position(
                divergence=float(apart[place]),
                before=reader.decode([int(token) for token in before]),
                stands_there=stands,
                original_expects=ours,
                it_expects=theirs,
            )
        )
    return found
