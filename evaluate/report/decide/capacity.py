"""The capacity of each candidate: the highest rate that meets the targets, from its trials."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from conf.files.json_files import JsonObject
from conf.models import ORIGINAL
from conf.schema.load import GpuConfig, gpus_of
from evaluate.report.decide.comparison import CandidateNames, ComparisonGroup
from evaluate.report.decide.costs import Cost, cost_of, has_energy
from evaluate.report.decide.rules.prices import Prices, counted
from evaluate.report.decide.workload_text import targets_phrases
from evaluate.results.capacity_search import Found, Limit, found
from evaluate.results.cells import chosen_options
from evaluate.results.restart_noise import UNKNOWN, machine_of
from evaluate.results.rows import TrialRow
from evaluate.results.significance import (
    STATED_START,
    Ratio,
    WorkloadNoise,
    machine_half_width,
)
from evaluate.results.summary import summarize

OF_A_TRIAL = ("rate", "requests", "curve")
SEARCH_OPTIONS = ("resolution", "first_rate", "seconds", "least_requests")
LEAST_SEARCHES = 3  # for an interval; of two, Student's factor alone is 12.7
# What one start may hide, at 95 %.
START_FACTOR = math.exp(statistics.NormalDist().inv_cdf(0.975) * STATED_START)


@dataclass
class Search:
    """One finished search."""

    start: int
    """The engine start that it ran in."""
    card: str | None
    """The GPU of all its trials; None where it is not known."""
    end: Found


@dataclass(frozen=True)
class LimitedBy:
    """What the requests missed that were not in time, in the trials just above a capacity: shares
    that add up to 1."""

    ttft: float
    tpot: float
    """Of those that did not miss the TTFT."""
    failed: float

    @property
    def most(self) -> Limit:
        """What most of them missed."""
        shares = (self.ttft, self.tpot, self.failed)
        return tuple(Limit)[shares.index(max(shares))]

    @property
    def most_share(self) -> float:
        return max(self.ttft, self.tpot, self.failed)


@dataclass
class CapacityCell:
    """The searches of one candidate under one kind of traffic and targets. Its figures are for one
    GPU."""

    measure: str
    candidate: str
    rows: list[TrialRow]
    """Its valid trials."""
    searches: list[Search]
    cost: Cost | None = None
    ratio: Ratio | None = None
    """Its capacity over that of the original with the most similar options. What is served is
    decided over the highest original instead."""

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
    def machines(self) -> set[str]:
        """The known machines that it was searched on."""
        return {machine_of(row) for row in self.rows} - {UNKNOWN}

    @property
    def ends(self) -> list[Found]:
        return [search.end for search in self.searches]

    @property
    def rate(self) -> float:
        """Requests a second; 0 where no rate meets the targets."""
        return statistics.fmean(end.rate for end in self.ends) / self.gpus

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate, never narrower than the searches' own steps. Of one or two
        searches, the rates between which all of them ended. Searches of one start do not show how
        starts differ: there it is wider by the stated start noise."""
        by_start: dict[int, list[float]] = defaultdict(list)
        for search in self.searches:
            by_start[search.start].append(search.end.rate)
        one_start = len(by_start) == 1
        means = [statistics.fmean(rates) for rates in by_start.values()]
        low, high = self._between(by_start.popitem()[1] if one_start else means)
        factor = START_FACTOR if one_start else 1.0
        return low / factor / self.gpus, high * factor / self.gpus

    def _between(self, rates: list[float]) -> tuple[float, float]:
        lows, highs = [end.low for end in self.ends], [end.high for end in self.ends]
        if len(rates) < LEAST_SEARCHES:
            return min(lows), max(highs)
        summary = summarize(rates, [])
        low = min(summary.low, statistics.median(lows))
        return max(0.0, low), max(summary.high, statistics.median(highs))

    @property
    def best(self) -> list[TrialRow]:
        """The trials at the highest rate of each search that met the targets."""
        lows = {end.low for end in self.ends}
        return [
            row
            for row in self.rows
            if row.settings.rate in lows and row.trial.meets and not row.trial.of_curve
        ]

    def at_best(self, name: str) -> float | None:
        """The median of a value over the best trials."""
        figures = [row.values.figure(name) for row in self.best]
        known = [figure for figure in figures if figure is not None]
        return statistics.median(known) if known else None

    @property
    def limited_by(self) -> LimitedBy | None:
        """What ends the search; None where rows do not say it."""
        highs = {end.high for end in self.ends}
        values = [
            row.values
            for row in self.rows
            if row.settings.rate in highs
            and not row.trial.meets
            # Older rows do not count what was late.
            and {"late_first_tokens", "late_further_tokens"} <= row.values.names
        ]
        ttft, tpot, failed = (
            sum(own.figure(name) or 0.0 for own in values)
            for name in ("late_first_tokens", "late_further_tokens", "failed_requests")
        )
        total = ttft + tpot + failed
        return LimitedBy(ttft / total, tpot / total, failed / total) if total else None

    def users(self, rate: float) -> float | None:
        """Requests in progress at once at a rate, if they take as long as in the best trials
        (Little's law)."""
        latency = self.at_best("request_latency_mean_s")
        return None if latency is None else rate * latency


@dataclass
class CapacityTable:
    """All candidates under the same traffic and targets, the highest rate first."""

    measure: str
    cells: list[CapacityCell] = field(default_factory=list)
    title: str = ""
    """Its name, with what distinguishes it from other searches of that name."""
    noise: WorkloadNoise = field(default_factory=WorkloadNoise)

    def cell(self, candidate: str) -> CapacityCell:
        return next(cell for cell in self.cells if cell.candidate == candidate)

    def ratio(self, cell: CapacityCell, other: CapacityCell) -> Ratio | None:
        """The capacity of a cell over another one's. None where one of them holds no rate."""
        return _ratio(cell, other, self.noise) if cell.rate and other.rate else None

    @property
    def between_rates(self) -> float:
        """The factor by which two rates differ at most by noise alone: of starts, and of machines
        where there are several."""
        machines = {machine for cell in self.cells for machine in cell.machines}
        apart = math.exp(machine_half_width(self.noise)) if len(machines) > 1 else 1.0
        return START_FACTOR**2 * apart

    @property
    def settings(self) -> list[str]:
        """Its traffic, its targets, and the share of requests that met them, as phrases."""
        return targets_phrases(self.cells[0].row.settings)

    @property
    def phrases(self) -> list[str]:
        """The same, with what else makes it a search of its own: its requests, and its options."""
        settings = self.cells[0].row.settings
        search = settings.capacity.content()
        options = [f"{name} {search[name]}" for name in SEARCH_OPTIONS if name in search]
        requests = f"requests {(settings.traffic.sha256 or '')[:8]}"
        return [*self.settings, requests, *options]

    @property
    def details(self) -> list[str]:
        """All that makes it a search of its own, for the rare one that the phrases do not tell."""
        details = []
        for name, value in _search_settings(self.cells[0].row).items():
            part = value if isinstance(value, dict) else {name: value}
            details += [f"{own_name} {own}" for own_name, own in part.items()]
        return details


def capacities(group: ComparisonGroup, gpu: GpuConfig) -> list[CapacityTable]:
    """The capacities of a group's candidates, by traffic and targets."""
    names = CandidateNames(group.rows)
    prices = Prices(gpu.price_per_hour, gpu.energy_price_per_kwh)
    prices = counted(prices, has_energy(group.rows))
    by_cell: dict[tuple[str, str, str, int], list[TrialRow]] = defaultdict(list)
    for row in group.rows:
        if isinstance(row, TrialRow) and not row.invalid:
            by_cell[_workload(row), row.checkpoint, row.key, row.session].append(row)
    tables: dict[str, CapacityTable] = {}
    for (workload, *_), rows in by_cell.items():
        searches = _finished(rows)
        if searches:
            cards = {search.card for search in searches}
            rows = [row for row in rows if row.environment.card in cards]
            cell = CapacityCell(rows[0].measure, names.of(rows[0]), rows, searches)
            cell.cost = cost_of(cell.rate, cell.best, gpu.currency, prices)
            noise = group.noise.of(cell.measure)
            table = CapacityTable(cell.measure, noise=noise)
            tables.setdefault(workload, table).cells.append(cell)
    _set_titles([*tables.values()])
    for table in tables.values():
        _name_duplicates(table)
        table.cells.sort(key=lambda cell: -cell.rate)
        _compare_with_original(table)
    return list(tables.values())


def _name_duplicates(table: CapacityTable) -> None:
    """Numbers cells of one candidate, as of two sessions, in the order of measurement."""
    counts: dict[str, int] = defaultdict(int)
    for cell in sorted(table.cells, key=lambda cell: cell.row.session):
        counts[cell.candidate] += 1
        if (number := counts[cell.candidate]) > 1:
            cell.candidate += f" #{number}"


def _set_titles(tables: list[CapacityTable]) -> None:
    """Adds what distinguishes it to the name of each search that shares it."""
    for table in tables:
        others = [other for other in tables if other.measure == table.measure]
        table.title = _title(table, table.phrases, [other.phrases for other in others])
    by_title: dict[str, list[CapacityTable]] = defaultdict(list)
    for table in tables:
        by_title[table.title].append(table)
    for same in by_title.values():
        for table in same if len(same) > 1 else []:
            table.title = _title(table, table.details, [other.details for other in same])


def _title(table: CapacityTable, phrases: list[str], all_phrases: list[list[str]]) -> str:
    own = [phrase for phrase in phrases if any(phrase not in other for other in all_phrases)]
    title = table.title or table.measure
    return f"{title} ({', '.join(own)})" if own else title


def _search_settings(row: TrialRow) -> JsonObject:
    """All settings but those of a single trial."""
    return {k: v for k, v in row.settings.identity().items() if k not in OF_A_TRIAL}


def _workload(row: TrialRow) -> str:
    """Equal for trials of the same search."""
    return str(sorted((k, str(v)) for k, v in _search_settings(row).items()))


def _finished(rows: Sequence[TrialRow]) -> list[Search]:
    trials: dict[tuple[int, int, str | None], list[TrialRow]] = defaultdict(list)
    for row in rows:
        trials[row.start, row.repeat, row.environment.card].append(row)
    resolution = rows[0].settings.capacity.resolution
    ends = {place: found([row.trial for row in own], resolution) for place, own in trials.items()}
    return [Search(start, card, end) for (start, _, card), end in ends.items() if end is not None]


def _compare_with_original(table: CapacityTable) -> None:
    """Sets each ratio over the original with the most similar options. Of several, it is one that
    was searched on the same machine or in the same session. Further originals are compared with
    the highest one."""
    originals = [cell for cell in table.cells if cell.checkpoint == ORIGINAL and cell.rate > 0]
    for cell in table.cells if originals else []:
        baseline = originals[0]
        if cell.checkpoint != ORIGINAL:
            baseline = min(originals, key=partial(_distance, cell))
        if cell is not baseline:
            cell.ratio = table.ratio(cell, baseline)


def _distance(cell: CapacityCell, original: CapacityCell) -> tuple[int, bool, bool, bool]:
    """How many options differ, then whether machines and sessions are the same, as for speeds."""
    options, others = chosen_options(cell.row), chosen_options(original.row)
    return (
        len(set(options.items()) ^ set(others.items())),
        cell.machines != original.machines,
        not cell.machines & original.machines,
        cell.row.session != original.row.session,
    )


def _ratio(cell: CapacityCell, original: CapacityCell, noise: WorkloadNoise) -> Ratio:
    """With the ends of both intervals together, which is wider than either needs, and with the
    noise between machines where they are known to be two. It has no upper end where the original
    may hold no rate at all: where one of its searches found none."""
    (low, high), (least, most) = cell.interval, original.interval
    found = Ratio(cell.rate / original.rate, low / most, high / least if least else math.inf)
    machines = cell.machines, original.machines
    if not all(machines) or machines[0] == machines[1]:
        return found
    between = machine_half_width(noise)
    if found.low:
        below = math.log(found.ratio / found.low)
        found.low = found.ratio * math.exp(-math.hypot(below, between))
    above = math.log(found.high / found.ratio)
    found.high = found.ratio * math.exp(math.hypot(above, between))
    return found
