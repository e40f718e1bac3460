"""The result of an evaluation as one object, for a calling program or a sweeper."""

import math
import statistics
from dataclasses import dataclass, field

from evaluate.results.cells import cells
from evaluate.results.rows import Row


@dataclass(frozen=True)
class MeasuredMedian:
    """The median of one value over the runs of a checkpoint in a scenario."""

    checkpoint: str
    scenario: str
    value: str
    median: float


@dataclass(frozen=True)
class Measured:
    """The median latencies of all cells; for an open loop, the latency of a request. As a number
    it is their geometric mean in seconds: smaller is faster, and each scenario has the same
    weight. NaN if nothing was timed."""

    medians: list[MeasuredMedian]
    rows: list[Row] = field(default_factory=list)
    """All rows of the evaluation, those of earlier runs included."""

    def __float__(self) -> float:
        if not self.medians:
            return math.nan
        return statistics.geometric_mean(entry.median for entry in self.medians)


def measured_by(rows: list[Row]) -> Measured:
    """The medians of all cells with valid runs."""
    medians = []
    for cell in cells(rows):
        summary = cell.summary(cell.ranked_by)
        if summary is not None:
            medians.append(MeasuredMedian(cell.label, cell.measure, cell.ranked_by, summary.median))
    return Measured(medians, rows)
