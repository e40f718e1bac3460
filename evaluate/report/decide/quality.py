"""What is left of the original's quality, from the rows that judged it."""

from collections import defaultdict
from dataclasses import dataclass, field

from conf.models import ORIGINAL
from evaluate.accuracy.divergence import BROKEN, VERDICTS
from evaluate.report.decide.comparable import Entry
from evaluate.results.rows import Row


@dataclass
class Quality:
    """The judgements of one checkpoint, the worst of which counts."""

    recovery: float | None = None
    """Share of the original's quality that is left, by the measure that shows most loss."""
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    measure: str = ""
    rows: list[Row] = field(default_factory=list)


@dataclass
class Qualities:
    """All judgements, to be found by checkpoint."""

    by_weights: dict[tuple[str, str, str], list[Row]]
    by_name: dict[tuple[str, str], list[Row]]

    def of(self, entry: Entry) -> Quality | None:
        """By the very weights that ran; for made-up weights, by the recipe's name. Another
        checkpoint that only has the same name says nothing."""
        row = entry.row
        if entry.checkpoint == ORIGINAL:
            return Quality(1.0, 1.0, 1.0, "the original")
        if row.environment.get("weights") == "random":
            found = self.by_name.get((row.model, row.checkpoint), [])
        else:
            weights = str(row.environment.get("checkpoint_sha256", ""))
            found = self.by_weights.get((row.model, row.checkpoint, weights), [])
        return _worst(found) if found else None


def qualities(rows: list[Row]) -> Qualities:
    weights: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    names: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        counts = not row.invalid or row.values.get("verdict") == BROKEN
        if row.kind == "accuracy" and row.checkpoint != ORIGINAL and counts:
            sha256 = str(row.environment.get("checkpoint_sha256", ""))
            weights[row.model, row.checkpoint, sha256].append(row)
            names[row.model, row.checkpoint].append(row)
    return Qualities(weights, names)


def _worst(rows: list[Row]) -> Quality:
    verdicts = [str(row.values.get("verdict", "")) for row in rows]
    known = [verdict for verdict in verdicts if verdict in VERDICTS]
    verdict = max(known, key=VERDICTS.index) if known else ""
    judged = [row for row in rows if row.values.get("recovery") is not None]
    if not judged:
        return Quality(verdict=verdict, rows=rows)
    worst = min(judged, key=lambda row: float(row.values["recovery"]))
    values = worst.values
    return Quality(
        recovery=values["recovery"],
        low=values.get("recovery_low"),
        high=values.get("recovery_high"),
        verdict=verdict,
        measure=worst.measure,
        rows=rows,
    )
