"""The runs of one checkpoint under one load, put together: what counts, and what it says."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from evaluate.results.rows import Row
from evaluate.results.significance import Sample, Start
from evaluate.results.summary import Summary, outliers, summarize

LATENCY, REQUEST_LATENCY = "latency_s", "request_latency_median_s"
LEAST_RUNS = 2  # of a cell that is compared
LEAST_STARTS = 3  # for an interval of starts; of two, Student's factor alone is 12.7
CONTEXT_OPTION = "max_model_len"


@dataclass
class Cell:
    """One checkpoint in one scenario."""

    measure: str
    checkpoint: str
    key: str
    valid: list[Row] = field(default_factory=list)
    invalid: list[Row] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict, repr=False)
    """Of its runs among all runs of the scenario, in the order of time; by the row's id."""
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
    def load_name(self) -> str:
        """The same for setups that ran the same workload."""
        return f"{self.row.model} {self.measure} {sorted(self.load.items())}"

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
        found = summarize([float(row.values[name]) for row in rows], places)
        starts = self.starts(name)
        if len(starts) < LEAST_STARTS:
            return found
        # Runs of one start are not independent: the interval is that of the starts.
        between = summarize([_mean(name, start) for start in starts], [])
        half = (between.high - between.low) / 2
        return replace(found, low=found.mean - half, high=found.mean + half)

    def starts(self, name: str) -> list[list[Row]]:
        """The runs that count, by the start of the engine. A start that was cut short is left out
        beside whole ones: its mean would be noisier than theirs."""
        strange = self._strange()
        found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self.valid:
            if id(row) not in strange and name in row.values:
                found[_start_of(row)].append(row)
        most = max((len(rows) for rows in found.values()), default=0)
        return [rows for rows in found.values() if 2 * len(rows) >= most]

    def sample(self, name: str) -> Sample | None:
        """For a comparison; none where a value has no logarithm."""
        found = []
        for rows in self.starts(name):
            values = [float(row.values[name]) for row in rows]
            if min(values) <= 0:
                return None
            places = [self.places.get(id(row), 0) for row in rows]
            logs = tuple(math.log(value) for value in values)
            found.append(Start(logs, sum(places) / len(places)))
        return Sample(tuple(found)) if found else None

    def _strange(self) -> set[int]:
        """Runs that stand out among those of their start by the time they took."""
        if self._outliers is None or self._outliers[0] != len(self.valid):
            by_start: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
            for row in self.valid:
                if self.ranked_by in row.values:
                    by_start[_start_of(row)].append(row)
            found = {
                id(timed[place])
                for timed in by_start.values()
                for place in outliers([float(row.values[self.ranked_by]) for row in timed])
            }
            self._outliers = (len(self.valid), found)
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


def _start_of(row: Row) -> tuple[Any, ...]:
    """The same for runs of one start of an engine."""
    return row.start, row.startup.get("start_s"), row.environment.get("card")


def _mean(name: str, rows: list[Row]) -> float:
    return sum(float(row.values[name]) for row in rows) / len(rows)


def cells(rows: list[Row]) -> list[Cell]:
    """Speed rows by scenario and checkpoint, in the order in which they were measured."""
    found: dict[str, Cell] = {}
    order: dict[str, int] = {}
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.kind != "speed":
            continue
        place = f"{row.checkpoint} {row.key}"
        cell = found.setdefault(place, Cell(row.measure, row.checkpoint, row.key))
        (cell.invalid if row.invalid else cell.valid).append(row)
        cell.places[id(row)] = counts[row.measure]
        counts[row.measure] += 1
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
