"""From views of a text to rows: who is compared with whom, what fails the gate, who disagrees."""

import math
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, gate_failed, world_fault
from conf.models import TOKENIZER
from conf.schema.commands import AccuracyConfig
from evaluate.accuracy.divergence import BROKEN, own_values, paired_values, worst_positions
from evaluate.measure.text_view import TextView
from evaluate.results.rows import Row

TOLERANCE = 0.01  # of the logarithm of perplexity, between engines on one checkpoint


def judged_values(path: Path, original: Path | None, folder: Path, seed: int) -> dict[str, Any]:
    """What a view says: alone for the original, against the original's for the others."""
    view = TextView.load(path)
    if original is None:
        return own_values(view)
    if not original.is_file():
        raise world_fault("the original was not judged, so that there is nothing to compare with")
    reference = TextView.load(original)
    values = paired_values(reference, view, seed)
    if values["verdict"] != BROKEN and (folder / TOKENIZER).is_file():
        values["worst"] = worst_positions(reference, view, folder / TOKENIZER)
    path.unlink()
    return values


def gate(values: dict[str, Any], accuracy: AccuracyConfig) -> QuantlineError | None:
    """What makes an accuracy fail: a broken checkpoint always, less than was asked for if asked."""
    if values.get("verdict") == BROKEN:
        known = [name for name in ("perplexity", "score") if name in values]
        shown = f"{known[0]} {values[known[0]]:.4g}" if known else "no number"
        return gate_failed(f"accuracy: it is broken, {shown}")
    least, found = accuracy.min_recovery, values.get("recovery")
    if least is not None and found is not None and found < least:
        low, high = values.get("recovery_low"), values.get("recovery_high")
        between = "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
        return gate_failed(
            f"accuracy: {found:.4f} of the original's quality is left{between}, "
            f"accuracy.min_recovery={least}"
        )
    return None


def engine_findings(rows: list[Row]) -> list[str]:
    """Checkpoints on which two engines disagree about the same text."""
    found = []
    judged = [row for row in rows if row.kind == "accuracy" and "perplexity" in row.values]
    for number, one in enumerate(judged):
        for other in judged[number + 1 :]:
            engines = [row.environment.get("engine") for row in (one, other)]
            if engines[0] == engines[1] or not _same_question(one, other):
                continue
            perplexities = [float(row.values["perplexity"]) for row in (one, other)]
            if abs(math.log(perplexities[0] / perplexities[1])) > TOLERANCE:
                found.append(
                    f"{one.checkpoint}: {engines[0]} and {engines[1]} disagree: perplexity "
                    f"{perplexities[0]:.4g} and {perplexities[1]:.4g} on the same text"
                )
    return found


def _same_question(one: Row, other: Row) -> bool:
    hashes = [row.environment.get("checkpoint_sha256") for row in (one, other)]
    return hashes[0] == hashes[1] and one.settings == other.settings
