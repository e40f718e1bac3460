"""The runs of one checkpoint under one load, put together: what counts, and what it says."""

from collections import defaultdict
from dataclasses import dataclass

from evaluate.results import Row
from evaluate.summary import Ratio, Summary, compare, summarize
from evaluate.targets import ORIGINAL

LATENCY = "latency_s"


@dataclass
class Cell:
    """One checkpoint in one scenario."""

    measure: str
    checkpoint: str
    key: str
    valid: list[Row]
    invalid: list[Row]

    def values(self, name: str) -> list[float]:
        return [float(row.values[name]) for row in self.valid if name in row.values]

    def summary(self, name: str) -> Summary | None:
        values = self.values(name)
        return summarize(values) if values else None

    def is_ranked(self, max_spread: float) -> bool:
        """Whether it may be compared: some run counts, and they agree with each other."""
        latency = self.summary(LATENCY)
        return latency is not None and latency.spread <= max_spread

    def share(self, phase: str) -> float | None:
        """The share of the hardware's limit that was reached, the middle of the runs."""
        values = [row.limit[f"{phase}_share"] for row in self.valid if row.limit]
        return summarize(values).median if values else None


def cells(rows: list[Row]) -> list[Cell]:
    """Speed rows by scenario and checkpoint, in the order in which they were measured."""
    found: dict[tuple[str, str, str], Cell] = {}
    order: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.kind != "speed":
            continue
        place = (row.measure, row.checkpoint, row.key)
        cell = found.setdefault(place, Cell(row.measure, row.checkpoint, row.key, [], []))
        (cell.invalid if row.invalid else cell.valid).append(row)
        order.setdefault(row.measure, len(order))
    return sorted(found.values(), key=lambda cell: order[cell.measure])


def against_original(cell: Cell, all_cells: list[Cell]) -> Ratio | None:
    """How many times as fast as the original it is, with its interval, by latency."""
    for other in all_cells:
        if other.measure == cell.measure and other.checkpoint == ORIGINAL and other is not cell:
            return compare(cell.values(LATENCY), other.values(LATENCY))
    return None
