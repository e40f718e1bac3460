"""The records of loads whose requests arrive over time, and of batch sizes."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conf.schema.load import gpus_of
from evaluate.report.decide.capacity import CapacityTable
from evaluate.report.decide.comparison import ComparisonGroup, Entry
from evaluate.report.decide.curves import BATCH, curves, families
from evaluate.report.show.records import GroupRecord, milli
from evaluate.results.rows import SpeedRow, TrialRow

POINTS = 40  # of a line over time
LEAST_REQUESTS = 10  # for percentiles
PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(kw_only=True)
class PercentileRecord(GroupRecord):
    """The requests of one candidate under one load, over all valid runs. Those of a capacity search
    are the requests at the rate that it found."""

    scenario: str
    title: str
    """The scenario, with what distinguishes a capacity search from others of it."""
    candidate: str
    requests: int
    ttft_p50_ms: float
    ttft_p90_ms: float | None
    """None where the rows do not hold the times of requests, as those of earlier searches."""
    ttft_p99_ms: float
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    latency_p50_s: float
    latency_p90_s: float | None
    latency_p99_s: float


@dataclass(kw_only=True)
class TimelineRecord(GroupRecord):
    """How many requests were in progress at one moment of the first valid run."""

    scenario: str
    title: str
    candidate: str
    second: float
    in_progress: int


@dataclass(frozen=True)
class Served:
    """The runs of one candidate under one load, in which requests arrived over time."""

    scenario: str
    title: str
    candidate: str
    rows: Sequence[SpeedRow | TrialRow]

    @property
    def with_times(self) -> list[SpeedRow | TrialRow]:
        """The runs whose rows hold the times of requests."""
        return [row for row in self.rows if row.requests.times_s]

    def median(self, name: str) -> float | None:
        """The median of a value over the runs."""
        figures = [row.values.figure(name) for row in self.rows]
        known = [figure for figure in figures if figure is not None]
        return statistics.median(known) if known else None


def percentile_records(
    group: ComparisonGroup, tables: Sequence[CapacityTable] = ()
) -> list[PercentileRecord]:
    return [
        record
        for served in [*_served(group), *_held(tables)]
        if (record := _percentile_record(group, served)) is not None
    ]


def _served(group: ComparisonGroup) -> Iterator[Served]:
    """The loads with requests over time, whose runs hold the times of requests."""
    for workload in group.workloads:
        if workload.settings.batch is None:
            for entry in workload.entries:
                served = Served(workload.name, workload.name, entry.candidate, entry.cell.valid)
                if served.with_times:
                    yield served


def _held(tables: Sequence[CapacityTable]) -> Iterator[Served]:
    """The trials at the rates that capacity searches found."""
    for table in tables:
        for cell in table.cells:
            if cell.best:
                yield Served(cell.measure, table.title, cell.candidate, cell.best)


def _percentile_record(group: ComparisonGroup, served: Served) -> PercentileRecord | None:
    ttft, latency = [], []
    for row in served.rows:
        for start, first, last, count in row.requests.times_s:
            ttft += [first - start] * int(count)
            latency += [last - start] * int(count)
    if not ttft:
        return _recorded_percentiles(group, served)
    if len(ttft) < LEAST_REQUESTS:
        return None
    ttft_ms = [1e3 * value for value in percentiles(ttft)]
    latencies = percentiles(latency)
    return PercentileRecord(
        group=group.title,
        scenario=served.scenario,
        title=served.title,
        candidate=served.candidate,
        requests=len(ttft),
        ttft_p50_ms=ttft_ms[0],
        ttft_p90_ms=ttft_ms[1],
        ttft_p99_ms=ttft_ms[2],
        tpot_p50_ms=milli(served.median("tpot_median_s")),
        tpot_p99_ms=milli(served.median("tpot_p99_s")),
        latency_p50_s=latencies[0],
        latency_p90_s=latencies[1],
        latency_p99_s=latencies[2],
    )


def _recorded_percentiles(group: ComparisonGroup, served: Served) -> PercentileRecord | None:
    """The percentiles that the rows hold as values, in the median over the runs."""
    ttft, ttft_p99 = served.median("ttft_median_s"), served.median("ttft_p99_s")
    latency = served.median("request_latency_median_s")
    latency_p99 = served.median("request_latency_p99_s")
    requests = sum(sum(row.requests.output_tokens.values()) for row in served.rows)
    if ttft is None or ttft_p99 is None or latency is None or latency_p99 is None:
        return None
    if requests < LEAST_REQUESTS:
        return None
    return PercentileRecord(
        group=group.title,
        scenario=served.scenario,
        title=served.title,
        candidate=served.candidate,
        requests=requests,
        ttft_p50_ms=1e3 * ttft,
        ttft_p90_ms=None,
        ttft_p99_ms=1e3 * ttft_p99,
        tpot_p50_ms=milli(served.median("tpot_median_s")),
        tpot_p99_ms=milli(served.median("tpot_p99_s")),
        latency_p50_s=latency,
        latency_p90_s=None,
        latency_p99_s=latency_p99,
    )


def percentiles(values: Sequence[float]) -> list[float]:
    """The smallest values that at least the given shares of all values do not exceed."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[min(last, int(share * len(ordered)))] for share in PERCENTILES]


def timeline_records(
    group: ComparisonGroup, tables: Sequence[CapacityTable] = ()
) -> list[TimelineRecord]:
    return [
        TimelineRecord(
            group=group.title,
            scenario=served.scenario,
            title=served.title,
            candidate=served.candidate,
            second=second,
            in_progress=count,
        )
        for served in [*_served(group), *_held(tables)]
        for row in served.with_times[:1]
        for second, count in in_progress(row)
    ]


def in_progress(row: SpeedRow | TrialRow) -> list[tuple[float, int]]:
    """Requests in progress at evenly spaced moments, from the first request to the last token."""
    times = row.requests.times_s
    begin = min(start for start, *_ in times)
    length = max(last for _, _, last, _ in times) - begin
    moments = [length * place / POINTS for place in range(POINTS + 1)]
    return [
        (
            moment,
            sum(int(n) for start, _, last, n in times if start - begin <= moment < last - begin),
        )
        for moment in moments
    ]


@dataclass(kw_only=True)
class BatchPointRecord(GroupRecord):
    """One batch size: what all users get together, against what each of them gets."""

    family: str
    """The fixed lengths, as text."""
    scenario: str
    candidate: str
    size: int
    user_tok_s: float
    gpu_tok_s: float
    is_best: bool
    """Whether no other point of the family has more of both (the Pareto front)."""


def batch_point_records(group: ComparisonGroup) -> list[BatchPointRecord]:
    found = []
    for family, members in families(curves(group, BATCH)).items():
        points = [
            point
            for curve in members
            for size, entry in curve.points
            if (point := _batch_point(group, family, size, entry)) is not None
        ]
        highest = 0.0
        for point in sorted(points, key=lambda p: (-p.user_tok_s, -p.gpu_tok_s)):
            if point.gpu_tok_s > highest:
                point.is_best, highest = True, point.gpu_tok_s
        found += points
    return found


def _batch_point(
    group: ComparisonGroup, family: str, size: int, entry: Entry
) -> BatchPointRecord | None:
    pace, tokens_s = entry.median("tpot_median_s"), entry.median("generated_tokens_per_s")
    if not pace or not tokens_s:
        return None
    return BatchPointRecord(
        group=group.title,
        family=family,
        scenario=entry.workload.name,
        candidate=entry.candidate,
        size=size,
        user_tok_s=1 / pace,
        gpu_tok_s=tokens_s / gpus_of(entry.row.environment.engine_options),
        is_best=False,
    )
