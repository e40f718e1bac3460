"""The runs of one checkpoint under one load, put together: what counts, and what it says."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from evaluate.results.row_types import WorkloadSettings
from evaluate.results.rows import Row, SpeedRow
from evaluate.results.significance import Sample, Start
from evaluate.results.summary import Summary, outliers, summarize

LATENCY, REQUEST_LATENCY = "latency_s", "request_latency_median_s"
LEAST_RUNS = 2  # of a cell that is compared
LEAST_STARTS = 3  # for an interval of starts; of two, Student's factor alone is 12.7
CONTEXT_OPTION = "max_model_len"
CHOSEN = ("engine_options", "variables")
SETUP = ("device", "engine", "engine_options", "versions", "variables")


class TimedRun(NamedTuple):
    """A run and one figure of it."""

    row: SpeedRow
    figure: float


@dataclass
class Cell:
    """One checkpoint in one scenario."""

    measure: str
    checkpoint: str
    valid: list[SpeedRow] = field(default_factory=list)
    invalid: list[SpeedRow] = field(default_factory=list)
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
    def row(self) -> SpeedRow:
        """The first of its runs, for what all of them share."""
        return (self.valid + self.invalid)[0]

    @property
    def settings(self) -> WorkloadSettings:
        """The scenario, as it was asked for."""
        return self.row.settings

    @cached_property
    def workload_name(self) -> str:
        """The same for setups that ran the same workload."""
        return f"{self.row.model} {self.measure} {self.settings_name}"

    @cached_property
    def settings_name(self) -> str:
        """The same for workloads with the same settings."""
        return str(sorted(self.settings.content().items()))

    @property
    def ranked_by(self) -> str:
        """The time that tells fast from slow. How long an open loop lasts is set by its arrivals,
        not by the engine: there it is the time of a request."""
        return REQUEST_LATENCY if self.settings.rate else LATENCY

    def values(self, name: str) -> list[float]:
        figures = [row.values.figure(name) for row in self.valid]
        return [figure for figure in figures if figure is not None]

    @property
    def names(self) -> set[str]:
        """What was measured in every run that counts."""
        rows = [row.values.names for row in self.valid]
        return set.intersection(*rows) if rows else set()

    def summary(self, name: str) -> Summary | None:
        """Of the runs that count. A run that stands out by the time it took is in no figure."""
        if name not in self._summaries or self._summaries[name][0] != len(self.valid):
            self._summaries[name] = (len(self.valid), self._summarized(name))
        return self._summaries[name][1]

    def _summarized(self, name: str) -> Summary | None:
        runs = _timed(self.valid, name)
        if not runs:
            return None
        strange = self._strange()
        places = [place for place, run in enumerate(runs) if id(run.row) in strange]
        if len(places) == len(runs):
            places = []
        summary = summarize([run.figure for run in runs], places)
        starts = self.starts(name)
        if len(starts) < LEAST_STARTS:
            return summary
        # Runs of one start are not independent: the interval is that of the starts.
        means = [sum(run.figure for run in start) / len(start) for start in starts]
        between = summarize(means, [])
        half = (between.high - between.low) / 2
        return replace(summary, low=summary.mean - half, high=summary.mean + half)

    def starts(self, name: str) -> list[list[TimedRun]]:
        """The runs that count, by the start of the engine. A start that was cut short is left out
        beside whole ones: its mean would be noisier than theirs."""
        strange = self._strange()
        runs = [run for run in _timed(self.valid, name) if id(run.row) not in strange]
        starts = _by_start(runs)
        most = max((len(start) for start in starts), default=0)
        return [start for start in starts if 2 * len(start) >= most]

    def sample(self, name: str) -> Sample | None:
        """For a comparison; none where a value has no logarithm."""
        starts = []
        for runs in self.starts(name):
            if min(run.figure for run in runs) <= 0:
                return None
            places = [self.places.get(id(run.row), 0) for run in runs]
            logs = tuple(math.log(run.figure) for run in runs)
            starts.append(Start(logs, sum(places) / len(places)))
        return Sample(tuple(starts)) if starts else None

    def _strange(self) -> set[int]:
        """Runs that stand out among those of their start by the time they took."""
        if self._outliers is None or self._outliers[0] != len(self.valid):
            strange = {
                id(runs[place].row)
                for runs in _by_start(_timed(self.valid, self.ranked_by))
                for place in outliers([run.figure for run in runs])
            }
            self._outliers = (len(self.valid), strange)
        return self._outliers[1]

    def is_ranked(self, max_spread: float) -> bool:
        """Whether it may be compared: some run counts, and they agree with each other."""
        latency = self.summary(self.ranked_by)
        return latency is not None and latency.spread <= max_spread

    @property
    def prefill_share(self) -> float | None:
        """The share of the hardware's limit that was reached, the middle of the runs."""
        return _middle([row.limit.prefill_share for row in self.valid])

    @property
    def decode_share(self) -> float | None:
        return _middle([row.limit.decode_share for row in self.valid])


def _middle(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return summarize(known).median if known else None


def _timed(rows: list[SpeedRow], name: str) -> list[TimedRun]:
    """The runs that measured the named figure."""
    figures = [(row, row.values.figure(name)) for row in rows]
    return [TimedRun(row, figure) for row, figure in figures if figure is not None]


def _by_start(runs: list[TimedRun]) -> list[list[TimedRun]]:
    """The runs of each start of an engine."""
    starts: dict[tuple[int, float | None, str | None], list[TimedRun]] = defaultdict(list)
    for run in runs:
        row = run.row
        starts[row.start, row.startup.start_s, row.environment.card].append(run)
    return list(starts.values())


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Speed rows by scenario and checkpoint, in the order in which they were measured."""
    found: dict[tuple[str, str, int], Cell] = {}
    order: dict[str, int] = {}
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        if not isinstance(row, SpeedRow):
            continue
        place = (row.checkpoint, row.key, row.session)
        cell = found.setdefault(place, Cell(row.measure, row.checkpoint))
        (cell.invalid if row.invalid else cell.valid).append(row)
        cell.places[id(row)] = counts[row.measure]
        counts[row.measure] += 1
        order.setdefault(row.measure, len(order))
    _set_apart(list(found.values()))
    return sorted(found.values(), key=lambda cell: order[cell.measure])


def by_workload(cells: list[Cell]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        found[cell.workload_name].append(cell)
    return found


def _set_apart(found: list[Cell]) -> None:
    """Names what differs between cells that would otherwise be called the same."""
    alike: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in found:
        alike[cell.measure, cell.checkpoint].append(cell)
    for group in alike.values():
        facts = [_facts(cell.row) for cell in group]
        for cell, own in zip(group, differing(facts), strict=True):
            cell.setting = ", ".join(f"{name}={value}" for name, value in own.items())


def differing(facts: list[dict[str, str]]) -> list[dict[str, str]]:
    """Of each, what is not the same in all of them."""
    shared = set.intersection(*(set(known.items()) for known in facts)) if facts else set()
    return [
        {name: value for name, value in known.items() if (name, value) not in shared}
        for known in facts
    ]


def _facts(row: SpeedRow) -> dict[str, str]:
    """What a key stands for, beside the checkpoint, in words."""
    settings = {name: str(value) for name, value in row.settings.content().items()}
    weights = {"weights": (row.environment.checkpoint_sha256 or "")[:8]}
    return row.environment.facts(*SETUP) | settings | weights


def chosen_options(row: Row) -> dict[str, str]:
    """What a team chooses, or sets in the environment, for the same engine."""
    options = row.environment.facts(*CHOSEN)
    # An evaluation sets the context to what its scenarios need: it makes no other candidate.
    return {name: value for name, value in options.items() if name != CONTEXT_OPTION}
