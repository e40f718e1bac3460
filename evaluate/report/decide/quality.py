"""The quality of checkpoints relative to the original, from accuracy rows."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from conf.models import ORIGINAL
from evaluate.accuracy.verdicts import BROKEN, VERDICTS
from evaluate.report.decide.comparison import Entry
from evaluate.results.cells import kernels_of
from evaluate.results.rows import AccuracyRow, Row


@dataclass
class Quality:
    """The quality of one checkpoint, by its worst accuracy row."""

    recovery: float | None = None
    """Share of the original's quality, by the measure with the largest loss."""
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    measure: str = ""
    rows: list[AccuracyRow] = field(default_factory=list)
    other_kernels: bool = False
    """Whether it was judged on other kernels than the speed was measured on."""

    @property
    def is_broken(self) -> bool:
        return self.verdict == BROKEN


@dataclass
class Qualities:
    """All accuracy rows, by checkpoint."""

    by_weights: dict[tuple[str, str, str], list[AccuracyRow]]
    by_name: dict[tuple[str, str], list[AccuracyRow]]

    def of(self, entry: Entry) -> Quality | None:
        """The quality of an entry's checkpoint."""
        return self.of_row(entry.row)

    def of_row(self, row: Row) -> Quality | None:
        """The quality of a row's checkpoint, found by the hash of its weights; for random
        weights, by the recipe's name. Another checkpoint with the same name does not count. Ours
        and vLLM's kernels may round differently, so the same ones count, if they were judged."""
        if row.checkpoint == ORIGINAL:
            return Quality(1.0, 1.0, 1.0, "the original")
        if row.environment.has_random_weights:
            rows = self.by_name.get((row.model, row.checkpoint), [])
        else:
            weights = row.environment.checkpoint_sha256 or ""
            rows = self.by_weights.get((row.model, row.checkpoint, weights), [])
        same_kernels = [judged for judged in rows if kernels_of(judged) == kernels_of(row)]
        if not same_kernels and rows:
            return replace(_worst(rows), other_kernels=True)
        return _worst(same_kernels) if same_kernels else None


def qualities(rows: Sequence[Row]) -> Qualities:
    weights: dict[tuple[str, str, str], list[AccuracyRow]] = defaultdict(list)
    names: dict[tuple[str, str], list[AccuracyRow]] = defaultdict(list)
    for row in rows:
        if not isinstance(row, AccuracyRow) or row.checkpoint == ORIGINAL:
            continue
        if not row.invalid or row.values.verdict == BROKEN:
            sha256 = row.environment.checkpoint_sha256 or ""
            weights[row.model, row.checkpoint, sha256].append(row)
            names[row.model, row.checkpoint].append(row)
    return Qualities(weights, names)


def _worst(rows: list[AccuracyRow]) -> Quality:
    verdicts = [row.values.verdict for row in rows if row.values.verdict is not None]
    verdict = max(verdicts, key=VERDICTS.index) if verdicts else ""
    judged = [(row.values.recovery, row) for row in rows if row.values.recovery is not None]
    if not judged:
        return Quality(verdict=verdict, rows=rows)
    recovery, worst = min(judged, key=lambda pair: pair[0])
    return Quality(
        recovery=recovery,
        low=worst.values.recovery_low,
        high=worst.values.recovery_high,
        verdict=verdict,
        measure=worst.measure,
        rows=rows,
    )
