"""The runs of one checkpoint under one load, put together: what counts, and what it says."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from conf.models import ORIGINAL
from evaluate.results import Row
from evaluate.summary import Ratio, Summary, compare, outliers, summarize

LATENCY, REQUEST_LATENCY = "latency_s", "request_latency_median_s"
LEAST_RUNS = 2  # of a cell that is compared
CONTEXT_OPTION = "max_model_len"


@dataclass
class Cell:
    """One checkpoint in one scenario."""

    measure: str
    checkpoint: str
    key: str
    valid: list[Row] = field(default_factory=list)
    invalid: list[Row] = field(default_factory=list)
    setting: str = ""
    """What sets it apart from other cells of the same checkpoint and scenario."""
    _summaries: dict[str, tuple[int, Summary | None]] = field(default_factory=dict, repr=False)
    """What was reckoned already, and from how many runs."""
    _outliers: tuple[int, set[int]] | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return f"{self.checkpoint} {self.setting}".strip()

    @property
    def row(self) -> Row:
        """The first of its runs, for what all of them share."""
        return (self.valid + self.invalid)[0]

    @property
    def load(self) -> dict[str, Any]:
        """The scenario, as it was asked for."""
        return self.row.settings

    @property
    def ranked_by(self) -> str:
        """The time that tells fast from slow. How long an open loop lasts is set by its arrivals,
        not by the engine: there it is the time of a request."""
        return REQUEST_LATENCY if self.load.get("rate") else LATENCY

    def values(self, name: str) -> list[float]:
        return [float(row.values[name]) for row in self.valid if name in row.values]

    @property
    def names(self) -> set[str]:
        """What was measured in every run that counts."""
        rows = [set(row.values) for row in self.valid]
        return set.intersection(*rows) if rows else set()

    def summary(self, name: str) -> Summary | None:
        """Of the runs that count. A run that stands out by the time it took is in no figure."""
        if name not in self._summaries or self._summaries[name][0] != len(self.valid):
            self._summaries[name] = (len(self.valid), self._summarized(name))
        return self._summaries[name][1]

    def _summarized(self, name: str) -> Summary | None:
        rows = [row for row in self.valid if name in row.values]
        if not rows:
            return None
        strange = self._strange()
        places = [place for place, row in enumerate(rows) if id(row) in strange]
        if len(places) == len(rows):
            places = []
        return summarize([float(row.values[name]) for row in rows], places)

    def _strange(self) -> set[int]:
        """Runs that stand out by the time they took."""
        if self._outliers is None or self._outliers[0] != len(self.valid):
            timed = [row for row in self.valid if self.ranked_by in row.values]
            wild = outliers([float(row.values[self.ranked_by]) for row in timed])
            self._outliers = (len(self.valid), {id(timed[place]) for place in wild})
        return self._outliers[1]

    def is_ranked(self, max_spread: float) -> bool:
        """Whether it may be compared: some run counts, and they agree with each other."""
        latency = self.summary(self.ranked_by)
        return latency is not None and latency.spread <= max_spread

    def share(self, phase: str) -> float | None:
        """The share of the hardware's limit that was reached, the middle of the runs."""
        name = f"{phase}_share"
        values = [row.limit[name] for row in self.valid if name in row.limit]
        return summarize(values).median if values else None


def cells(rows: list[Row]) -> list[Cell]:
    """Speed rows by scenario and checkpoint, in the order in which they were measured."""
    found: dict[str, Cell] = {}
    order: dict[str, int] = {}
    for row in rows:
        if row.kind != "speed":
            continue
        place = f"{row.checkpoint} {row.key}"
        cell = found.setdefault(place, Cell(row.measure, row.checkpoint, row.key))
        (cell.invalid if row.invalid else cell.valid).append(row)
        order.setdefault(row.measure, len(order))
    _set_apart(list(found.values()))
    return sorted(found.values(), key=lambda cell: order[cell.measure])


def _set_apart(found: list[Cell]) -> None:
    """Names what differs between cells that would otherwise be called the same."""
    alike: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in found:
        alike[cell.measure, cell.checkpoint].append(cell)
    for group in alike.values():
        facts = [_facts(cell.row) for cell in group]
        shared = set.intersection(*(set(fact.items()) for fact in facts))
        for cell, fact in zip(group, facts, strict=True):
            own = [f"{name}={value}" for name, value in fact.items() if (name, value) not in shared]
            cell.setting = ", ".join(own)


def _facts(row: Row) -> dict[str, str]:
    """What a key stands for, beside the checkpoint and the load, in words."""
    environment = row.environment
    parts = {name: environment.get(name, "") for name in ("device", "engine")}
    for group in ("engine_options", "versions", "variables"):
        parts |= environment.get(group, {})
    parts |= row.settings
    parts["weights"] = environment.get("checkpoint_sha256", "")[:8]
    return {name: str(value) for name, value in parts.items()}


def chosen_options(row: Row) -> dict[str, str]:
    """What a team chooses, or sets in the environment, for the same engine."""
    environment = row.environment
    parts = {**environment.get("engine_options", {}), **environment.get("variables", {})}
    # An evaluation sets the context to what its scenarios need: it makes no other candidate.
    return {name: str(value) for name, value in parts.items() if name != CONTEXT_OPTION}


def against_original(cell: Cell, all_cells: list[Cell]) -> Ratio | None:
    """How many times as fast as the original under the same settings it is, by latency."""
    for other in all_cells:
        same = other.measure == cell.measure and other.setting == cell.setting
        if same and other.checkpoint == ORIGINAL and other is not cell:
            return compare(cell.values(cell.ranked_by), other.values(cell.ranked_by))
    return None
