"""Judges views of a text: the comparison with the original, the gate, and engines that disagree."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from conf.errors import QuantlineError, environment_failure, gate_failed
from conf.models import TOKENIZER
from conf.schema.commands import AccuracyConfig
from evaluate.accuracy.divergence import (
    BROKEN,
    Judgement,
    own_values,
    paired_values,
    worst_positions,
)
from evaluate.measure.text_view import TextView
from evaluate.results.row_values import QuickAccuracy, TaskAccuracy
from evaluate.results.rows import AccuracyRow, QuickAccuracyRow, Row

TOLERANCE = 0.01  # difference of log perplexity between engines on one checkpoint


def judged_values(path: Path, original: Path | None, folder: Path, seed: int) -> Judgement:
    """The accuracy of a view: alone for the original, compared with the original's otherwise."""
    view = TextView.load(path)
    if original is None:
        return own_values(view)
    if not original.is_file():
        raise environment_failure(
            "the original's accuracy was not measured, so there is nothing to compare with"
        )
    reference = TextView.load(original)
    judgement = paired_values(reference, view, seed)
    if judgement.values.verdict != BROKEN and (folder / TOKENIZER).is_file():
        judgement.values.worst = worst_positions(reference, view, folder / TOKENIZER)
    path.unlink(missing_ok=True)
    return judgement


def gate(values: QuickAccuracy | TaskAccuracy, accuracy: AccuracyConfig) -> QuantlineError | None:
    """The gate's failure, if any: a broken checkpoint always fails; a recovery below
    `min_recovery` fails if that is set."""
    if values.verdict == BROKEN:
        return gate_failed(f"accuracy: the model is broken, {_quality_text(values)}")
    least, recovery = accuracy.min_recovery, values.recovery
    if least is not None and recovery is not None and recovery < least:
        low, high = values.recovery_low, values.recovery_high
        between = "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
        return gate_failed(
            f"accuracy: {recovery:.4f} of the original's quality is left{between}, "
            f"accuracy.min_recovery={least}"
        )
    return None


def _quality_text(values: QuickAccuracy | TaskAccuracy) -> str:
    if isinstance(values, TaskAccuracy):
        return f"score {values.score:.4g}"
    return "no number" if values.perplexity is None else f"perplexity {values.perplexity:.4g}"


def engine_findings(rows: Sequence[Row]) -> list[str]:
    """Checkpoints on which two engines disagree about the same text."""
    findings = []
    judged = [row for row in rows if isinstance(row, QuickAccuracyRow)]
    for one, other in itertools.combinations(judged, 2):
        engines = [row.environment.engine for row in (one, other)]
        first, second = one.values.perplexity, other.values.perplexity
        if first is None or second is None or engines[0] == engines[1]:
            continue
        if _has_same_text(one, other) and abs(math.log(first / second)) > TOLERANCE:
            findings.append(
                f"{one.checkpoint}: {engines[0]} and {engines[1]} disagree: perplexity "
                f"{first:.4g} and {second:.4g} on the same text"
            )
    return findings


def _has_same_text(one: AccuracyRow, other: AccuracyRow) -> bool:
    hashes = [row.environment.checkpoint_sha256 for row in (one, other)]
    return hashes[0] == hashes[1] and one.settings == other.settings
