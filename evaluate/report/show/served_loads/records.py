"""The records of loads whose requests arrive over time, and of batch sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conf.schema.load import gpus_of
from evaluate.report.decide.comparison import ComparisonGroup, Entry
from evaluate.report.decide.curves import BATCH, curves, families
from evaluate.report.show.records import GroupRecord, milli
from evaluate.results.rows import SpeedRow

POINTS = 40  # of a line over time
LEAST_REQUESTS = 10  # for percentiles
PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(kw_only=True)
class PercentileRecord(GroupRecord):
    """The requests of one candidate under one load, over all valid runs."""

    scenario: str
    candidate: str
    requests: int
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float


@dataclass(kw_only=True)
class TimelineRecord(GroupRecord):
    """How many requests were in progress at one moment of the first valid run."""

    scenario: str
    candidate: str
    second: float
    in_progress: int


def percentile_records(group: ComparisonGroup) -> list[PercentileRecord]:
    return [
        record
        for entry in _served(group)
        if (record := _percentile_record(group, entry)) is not None
    ]


def _served(group: ComparisonGroup) -> Iterator[Entry]:
    """The entries of loads with requests over time, whose runs hold the times of requests."""
    for workload in group.workloads:
        if workload.settings.batch is None:
            for entry in workload.entries:
                if any(row.requests.times_s for row in entry.cell.valid):
                    yield entry


def _percentile_record(group: ComparisonGroup, entry: Entry) -> PercentileRecord | None:
    ttft, latency = [], []
    for row in entry.cell.valid:
        for start, first, last, count in row.requests.times_s:
            ttft += [first - start] * int(count)
            latency += [last - start] * int(count)
    if len(ttft) < LEAST_REQUESTS:
        return None
    ttft_ms = [1e3 * value for value in percentiles(ttft)]
    latencies = percentiles(latency)
    return PercentileRecord(
        group=group.title,
        scenario=entry.workload.name,
        candidate=entry.candidate,
        requests=len(ttft),
        ttft_p50_ms=ttft_ms[0],
        ttft_p90_ms=ttft_ms[1],
        ttft_p99_ms=ttft_ms[2],
        tpot_p50_ms=milli(entry.median("tpot_median_s")),
        tpot_p99_ms=milli(entry.median("tpot_p99_s")),
        latency_p50_s=latencies[0],
        latency_p90_s=latencies[1],
        latency_p99_s=latencies[2],
    )


def percentiles(values: Sequence[float]) -> list[float]:
    """The smallest values that at least the given shares of all values do not exceed."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[min(last, int(share * len(ordered)))] for share in PERCENTILES]


def timeline_records(group: ComparisonGroup) -> list[TimelineRecord]:
    return [
        TimelineRecord(
            group=group.title,
            scenario=entry.workload.name,
            candidate=entry.candidate,
            second=second,
            in_progress=count,
        )
        for entry in _served(group)
        for second, count in in_progress(
            next(row for row in entry.cell.valid if row.requests.times_s)
        )
    ]


def in_progress(row: SpeedRow) -> list[tuple[float, int]]:
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
