"""Cells: the runs of one checkpoint under one workload, and their summaries."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from conf.schema.kernels import AUTO, KERNELS_OPTION, VLLM, automatic_in
from evaluate.results.row_types import WorkloadSettings
from evaluate.results.rows import Row, SpeedRow, TrialRow
from evaluate.results.significance import Sample, Start
from evaluate.results.summary import Summary, outliers, summarize

LATENCY, REQUEST_LATENCY = "latency_s", "request_latency_median_s"
LEAST_RUNS = 2  # of a cell that is compared
LEAST_STARTS = 3  # for an interval of starts; of two, Student's factor alone is 12.7
CONTEXT_OPTION = "max_model_len"
PREFIX_OPTION = "enable_prefix_caching"
CHOSEN = ("engine_options", "variables")
KERNEL_SUFFIX = "LinearKernel"
SETUP = ("device", "engine", "engine_options", "versions", "variables")


class TimedRun(NamedTuple):
    """A run and one of its values."""

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
    """The position of each run among all runs of the scenario in time order, by the row's id."""
    setting: str = ""
    """How it differs from other cells of the same checkpoint and scenario."""
    _summaries: dict[str, tuple[int, Summary | None]] = field(default_factory=dict, repr=False)
    """A cache: each summary, with the number of runs behind it."""
    _samples: dict[str, tuple[int, Sample | None]] = field(default_factory=dict, repr=False)
    _outliers: tuple[int, set[int]] | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return f"{self.checkpoint} {self.setting}".strip()

    @property
    def row(self) -> SpeedRow:
        """The first run, for the fields that all runs share."""
        return (self.valid + self.invalid)[0]

    @property
    def settings(self) -> WorkloadSettings:
        """The scenario's settings."""
        return self.row.settings

    @cached_property
    def workload_name(self) -> str:
        """Equal for setups that ran the same workload."""
        return f"{self.row.model} {self.measure} {self.settings_name}"

    @cached_property
    def settings_name(self) -> str:
        """Equal for workloads with the same settings."""
        return str(sorted(self.settings.identity().items()))

    @property
    def ranked_by(self) -> str:
        """The name of the time that ranks setups. The arrivals, not the engine, set the duration
        of an open loop, so there it is the latency of a request."""
        return REQUEST_LATENCY if self.settings.has_own_arrivals else LATENCY

    def values(self, name: str) -> list[float]:
        figures = [row.values.figure(name) for row in self.valid]
        return [figure for figure in figures if figure is not None]

    @property
    def names(self) -> set[str]:
        """The values that every valid run has."""
        rows = [row.values.names for row in self.valid]
        return set.intersection(*rows) if rows else set()

    def summary(self, name: str) -> Summary | None:
        """The summary of the valid runs. Runs whose time is an outlier are excluded."""
        if name not in self._summaries or self._summaries[name][0] != len(self.valid):
            self._summaries[name] = (len(self.valid), self._summarized(name))
        return self._summaries[name][1]

    def _summarized(self, name: str) -> Summary | None:
        runs = _timed_runs(self.valid, name)
        if not runs:
            return None
        outlier_ids = self._outlier_ids()
        places = [place for place, run in enumerate(runs) if id(run.row) in outlier_ids]
        if len(places) == len(runs):
            places = []
        summary = summarize([run.figure for run in runs], places)
        starts = self.starts(name)
        if len(starts) < LEAST_STARTS:
            return summary
        # Runs of one start are not independent: the interval is that of the starts.
        means = [sum(run.figure for run in start) / len(start) for start in starts]
        start_summary = summarize(means, [])
        half_width = (start_summary.high - start_summary.low) / 2
        return replace(summary, low=summary.mean - half_width, high=summary.mean + half_width)

    def starts(self, name: str) -> list[list[TimedRun]]:
        """The valid runs, by start of the engine. A start with less than half as many runs as the
        longest one is left out: its mean would be noisier than the others."""
        outlier_ids = self._outlier_ids()
        runs = [run for run in _timed_runs(self.valid, name) if id(run.row) not in outlier_ids]
        starts = _by_start(runs)
        most_runs = max((len(start) for start in starts), default=0)
        return [start for start in starts if 2 * len(start) >= most_runs]

    def sample(self, name: str) -> Sample | None:
        """The logarithms for a comparison; None if a value is not positive."""
        if name not in self._samples or self._samples[name][0] != len(self.valid):
            self._samples[name] = (len(self.valid), self._sampled(name))
        return self._samples[name][1]

    def _sampled(self, name: str) -> Sample | None:
        starts = []
        for runs in self.starts(name):
            if min(run.figure for run in runs) <= 0:
                return None
            places = [self.places.get(id(run.row), 0) for run in runs]
            logs = tuple(math.log(run.figure) for run in runs)
            starts.append(Start(logs, sum(places) / len(places)))
        return Sample(tuple(starts)) if starts else None

    def _outlier_ids(self) -> set[int]:
        """The row ids of runs whose time is an outlier within their start."""
        if self._outliers is None or self._outliers[0] != len(self.valid):
            outlier_ids = {
                id(runs[place].row)
                for runs in _by_start(_timed_runs(self.valid, self.ranked_by))
                for place in outliers([run.figure for run in runs])
            }
            self._outliers = (len(self.valid), outlier_ids)
        return self._outliers[1]

    def is_ranked(self, max_spread: float) -> bool:
        """Whether it may be ranked: it has valid runs, and their spread is small enough."""
        latency = self.summary(self.ranked_by)
        return latency is not None and latency.spread <= max_spread

    @property
    def prefill_share(self) -> float | None:
        """The share of the hardware's limit that was reached: the median over the runs."""
        return _median_share([row.limit.prefill_share for row in self.valid])

    @property
    def decode_share(self) -> float | None:
        return _median_share([row.limit.decode_share for row in self.valid])


def _median_share(shares: list[float | None]) -> float | None:
    known_shares = [share for share in shares if share is not None]
    return summarize(known_shares).median if known_shares else None


def _timed_runs(rows: list[SpeedRow], name: str) -> list[TimedRun]:
    """The runs that have the named value."""
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
    """The cells of all speed rows. Scenarios stay in the order in which they were measured."""
    cells_by_key: dict[tuple[str, str, int], Cell] = {}
    measure_order: dict[str, int] = {}
    run_counts: dict[str, int] = defaultdict(int)
    for row in rows:
        if not isinstance(row, SpeedRow):
            continue
        cell_key = (row.checkpoint, row.key, row.session)
        cell = cells_by_key.setdefault(cell_key, Cell(row.measure, row.checkpoint))
        (cell.invalid if row.invalid else cell.valid).append(row)
        cell.places[id(row)] = run_counts[row.measure]
        run_counts[row.measure] += 1
        measure_order.setdefault(row.measure, len(measure_order))
    _name_differences(list(cells_by_key.values()))
    return sorted(cells_by_key.values(), key=lambda cell: measure_order[cell.measure])


def by_workload(cells: list[Cell]) -> dict[str, list[Cell]]:
    workload_cells: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        workload_cells[cell.workload_name].append(cell)
    return workload_cells


def _name_differences(cells: list[Cell]) -> None:
    """Sets the `setting` of cells that share a name: the facts in which they differ."""
    same_name: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        same_name[cell.measure, cell.checkpoint].append(cell)
    for group in same_name.values():
        facts = [_facts(cell.row) for cell in group]
        for cell, own_facts in zip(group, differing(facts), strict=True):
            cell.setting = ", ".join(f"{name}={value}" for name, value in own_facts.items())


def differing(facts: list[dict[str, str]]) -> list[dict[str, str]]:
    """For each dict, the entries that not all dicts share."""
    shared = set.intersection(*(set(own_facts.items()) for own_facts in facts)) if facts else set()
    return [
        {name: value for name, value in own_facts.items() if (name, value) not in shared}
        for own_facts in facts
    ]


def _facts(row: SpeedRow) -> dict[str, str]:
    """The facts behind a row's key, except the checkpoint's name."""
    settings = {name: str(value) for name, value in row.settings.content().items()}
    weights = {"weights": (row.environment.checkpoint_sha256 or "")[:8]}
    return row.environment.facts(*SETUP) | settings | weights


def chosen_options(row: Row) -> dict[str, str]:
    """The engine options and environment variables that a team chooses."""
    options = row.environment.facts(*CHOSEN)
    # An evaluation sets the context length to what its scenarios need; that is no team's choice.
    options.pop(CONTEXT_OPTION, None)
    if isinstance(row, SpeedRow | TrialRow) and row.settings.traffic is not None:
        options.pop(PREFIX_OPTION, None)  # a part of the load, whose settings have it
    kernels = row.environment.engine_options.get(KERNELS_OPTION)
    if kernels == VLLM:  # as rows without the option
        del options[KERNELS_OPTION]
    elif kernels == list(automatic_in(row.environment.kernels_version)):
        options[KERNELS_OPTION] = AUTO
    elif isinstance(kernels, list):
        options[KERNELS_OPTION] = f"[{','.join(map(str, kernels))}]"  # as it is typed
    return options


def kernel_names(row: Row) -> str:
    """The kernels that the engine chose, without their common suffix."""
    names = sorted({name for chosen in row.kernels.values() for name in chosen.split(", ")})
    return ", ".join(name.removesuffix(KERNEL_SUFFIX) for name in names)


def kernels_of(row: Row) -> str:
    """The option `kernels` of a row. Rows without it ran on the engine's own."""
    return chosen_options(row).get(KERNELS_OPTION, VLLM)
