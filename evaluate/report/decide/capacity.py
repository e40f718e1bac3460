"""The capacity of each candidate: the highest rate that meets the targets, from its trials."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conf.models import ORIGINAL
from conf.schema.load import GpuConfig, gpus_of
from evaluate.report.decide.comparison import CandidateNames, ComparisonGroup
from evaluate.report.decide.costs import Cost, cost_of
from evaluate.results.capacity_search import Found, found
from evaluate.results.rows import TrialRow
from evaluate.results.significance import Ratio
from evaluate.results.summary import summarize

LEAST_SEARCHES = 3  # for an interval; of two, Student's factor alone is 12.7


@dataclass
class CapacityCell:
    """The searches of one candidate under one kind of traffic and targets."""

    measure: str
    candidate: str
    rows: list[TrialRow]
    """Its valid trials."""
    ends: list[Found]
    """Where each finished search ended."""
    cost: Cost | None = None
    ratio: Ratio | None = None
    """Its capacity over the original's."""

    @property
    def row(self) -> TrialRow:
        return self.rows[0]

    @property
    def checkpoint(self) -> str:
        return self.row.checkpoint

    @property
    def gpus(self) -> int:
        return gpus_of(self.row.environment.engine_options)

    @property
    def rate(self) -> float:
        """Requests a second on all GPUs; 0 where no rate meets the targets."""
        return statistics.fmean(end.rate for end in self.ends)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate, never narrower than the searches' own steps. Of one or two
        searches, the rates between which all of them ended."""
        if len(self.ends) < LEAST_SEARCHES:
            return min(end.low for end in self.ends), max(end.high for end in self.ends)
        summary = summarize([end.rate for end in self.ends], [])
        low = min(summary.low, statistics.median(end.low for end in self.ends))
        return max(0.0, low), max(summary.high, statistics.median(end.high for end in self.ends))

    @property
    def best(self) -> list[TrialRow]:
        """The trials at the highest rate of each search that met the targets."""
        lows = {end.low for end in self.ends}
        return [row for row in self.rows if row.settings.rate in lows and row.trial.meets]

    def at_best(self, name: str) -> float | None:
        """The median of a value over the best trials."""
        figures = [row.values.figure(name) for row in self.best]
        known = [figure for figure in figures if figure is not None]
        return statistics.median(known) if known else None

    @property
    def users(self) -> float | None:
        """Requests in progress at once at that rate (Little's law)."""
        latency = self.at_best("request_latency_mean_s")
        return None if latency is None else self.rate * latency


@dataclass
class CapacityTable:
    """All candidates under the same traffic and targets, the highest rate first."""

    measure: str
    cells: list[CapacityCell] = field(default_factory=list)


def capacities(group: ComparisonGroup, gpu: GpuConfig) -> list[CapacityTable]:
    """The capacities of a group's candidates, by traffic and targets."""
    names = CandidateNames(group.rows)
    by_cell: dict[tuple[str, str, str, int], list[TrialRow]] = defaultdict(list)
    for row in group.rows:
        if isinstance(row, TrialRow) and not row.invalid:
            by_cell[_workload(row), row.checkpoint, row.key, row.session].append(row)
    tables: dict[str, CapacityTable] = {}
    for (workload, *_), rows in by_cell.items():
        ends = _ends(rows)
        if ends:
            cell = CapacityCell(rows[0].measure, names.of(rows[0]), rows, ends)
            cell.cost = cost_of(cell.rate, cell.best, cell.gpus, gpu)
            tables.setdefault(workload, CapacityTable(cell.measure)).cells.append(cell)
    for table in tables.values():
        table.cells.sort(key=lambda cell: -cell.rate)
        _compare_with_original(table)
    return list(tables.values())


def _workload(row: TrialRow) -> str:
    """Equal for trials of the same search: all settings but the rate and the requests."""
    settings = row.settings.content()
    return str(sorted((k, str(v)) for k, v in settings.items() if k not in ("rate", "requests")))


def _ends(rows: Sequence[TrialRow]) -> list[Found]:
    searches: dict[tuple[int, int], list[TrialRow]] = defaultdict(list)
    for row in rows:
        searches[row.start, row.repeat].append(row)
    resolution = rows[0].settings.capacity.resolution
    ends = [found([row.trial for row in search], resolution) for search in searches.values()]
    return [end for end in ends if end is not None]


def _compare_with_original(table: CapacityTable) -> None:
    originals = [cell for cell in table.cells if cell.checkpoint == ORIGINAL and cell.rate > 0]
    for cell in table.cells if originals else []:
        original = originals[0]
        if cell is not original:
            (low, high), (least, most) = cell.interval, original.interval
            # The ends of both intervals together: wider than either needs.
            upper = high / least if least > 0 else float("inf")
            cell.ratio = Ratio(cell.rate / original.rate, low / most, upper)
