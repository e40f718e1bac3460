"""The records that tables and charts show of a comparison group."""

import math
from dataclasses import dataclass

from conf.models import ORIGINAL
from evaluate.report.decide.comparison import ComparisonGroup, Entry
from evaluate.report.decide.curves import curves, families
from evaluate.report.decide.kernels import choices_of_kernel
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.results.cells import kernel_names
from evaluate.results.significance import Ratio
from evaluate.results.summary import Summary

FlatRecord = dict[str, str | int | float | bool | None]
"""A record as charts and the page's script read it: a value for each field."""

MILLI = 1e3
SHOWN_RUNS = 12


@dataclass(frozen=True)
class Speedup:
    """Speed-up over the original with its interval; all None without a comparison."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    """None where it has no upper end, too: JSON has no infinity."""
    differs: bool | None = None

    @classmethod
    def of(cls, ratio: Ratio | None) -> "Speedup":
        if ratio is None:
            return cls()
        high = ratio.high if math.isfinite(ratio.high) else None
        return cls(ratio.ratio, ratio.low, high, ratio.differs)

    def content(self) -> FlatRecord:
        return {
            "speedup": self.ratio,
            "speedup_low": self.low,
            "speedup_high": self.high,
            "differs": self.differs,
        }


@dataclass(frozen=True)
class MedianWithInterval:
    """The median of the valid runs, with the interval of their mean if there are several."""

    median: float
    low: float | None = None
    high: float | None = None


@dataclass(kw_only=True)
class Record:
    """Base of all records. The fields are the keys that charts and the page's script read."""

    def content(self) -> FlatRecord:
        """The record as a flat dict, for charts and the page."""
        content: FlatRecord = {}
        for name, value in vars(self).items():
            if isinstance(value, Speedup):
                content |= value.content()
            elif isinstance(value, MedianWithInterval):
                content[name] = value.median
            else:
                content[name] = value
        return content

    def belongs_to(self, group: ComparisonGroup) -> bool:
        """Whether the record is shown for the group."""
        return True

    @property
    def plotted_with(self) -> str:
        """Equal for records that may be in one plot."""
        return ""


@dataclass(kw_only=True)
class GroupRecord(Record):
    """A record of one comparison group."""

    group: str
    """Its title."""

    def content(self) -> FlatRecord:
        content = super().content()
        del content["group"]  # the page refers to groups by index
        return content

    def belongs_to(self, group: ComparisonGroup) -> bool:
        return group.title == self.group

    @property
    def plotted_with(self) -> str:
        return self.group


@dataclass(kw_only=True)
class CellRecord(GroupRecord):
    """One candidate under one workload."""

    scenario: str
    candidate: str
    checkpoint: str
    rank: int | None
    tied: bool
    runs: int
    invalid: int
    outliers: int
    kernel: str
    need_gib: float | None
    kv_requests: float | None
    clock_share: float | None
    prefill_share: float | None
    decode_share: float | None
    latencies: str
    latency_s: MedianWithInterval | None
    ttft_ms: MedianWithInterval | None
    tpot_ms: MedianWithInterval | None
    output_tok_s: MedianWithInterval | None
    overall_tok_s: MedianWithInterval | None
    input_tok_s: MedianWithInterval | None
    requests_s: MedianWithInterval | None
    goodput_s: MedianWithInterval | None
    joules_per_token: MedianWithInterval | None
    speedup: Speedup
    recovery: float | None
    verdict: str | None


def cell_records(group: ComparisonGroup, qualities: Qualities) -> list[CellRecord]:
    return [
        _cell_record(group, entry, qualities.of(entry))
        for workload in group.workloads
        for entry in workload.entries
    ]


def _cell_record(group: ComparisonGroup, entry: Entry, quality: Quality | None) -> CellRecord:
    cell = entry.cell
    # The arrivals set the duration of an open loop, so there the latency of a request is shown.
    latency = cell.summary(cell.ranked_by)
    return CellRecord(
        group=group.title,
        scenario=entry.workload.name,
        candidate=entry.candidate,
        checkpoint=entry.checkpoint,
        rank=entry.rank,
        tied=entry.tied,
        runs=len(cell.valid),
        invalid=len(cell.invalid),
        outliers=len(latency.outliers) if latency else 0,
        kernel=kernel_names(entry.row),
        need_gib=need_gib(entry),
        kv_requests=entry.row.memory.kv_cache_requests,
        clock_share=entry.clock_share,
        prefill_share=cell.prefill_share,
        decode_share=cell.decode_share,
        latencies=_runs(cell.values(cell.ranked_by)),
        latency_s=_median(latency),
        ttft_ms=_median(cell.summary("ttft_last_s"), MILLI),
        tpot_ms=_median(cell.summary("tpot_median_s"), MILLI),
        output_tok_s=_median(cell.summary("generated_tokens_per_s")),
        overall_tok_s=_median(cell.summary("overall_tokens_per_s")),
        input_tok_s=_median(cell.summary("input_tokens_per_s")),
        requests_s=_median(cell.summary("requests_per_s")),
        goodput_s=_median(cell.summary("goodput_requests_per_s")),
        joules_per_token=_median(cell.summary("joules_per_output_token")),
        speedup=speedup_of(entry),
        recovery=quality.recovery if quality else None,
        verdict=quality.verdict if quality else None,
    )


def _median(summary: Summary | None, scale: float = 1.0) -> MedianWithInterval | None:
    if summary is None:
        return None
    if summary.runs == 1:
        return MedianWithInterval(summary.median * scale)
    return MedianWithInterval(summary.median * scale, summary.low * scale, summary.high * scale)


def speedup_of(entry: Entry) -> Speedup:
    if entry.ratio is None and entry.checkpoint == ORIGINAL and entry.cell.valid:
        return Speedup(1.0, 1.0, 1.0, differs=False)
    return Speedup.of(entry.ratio)


def milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MILLI


def _runs(values: list[float]) -> str:
    text = ", ".join(f"{value:.4g}" for value in values[:SHOWN_RUNS])
    return text + (" …" if len(values) > SHOWN_RUNS else "")


@dataclass(kw_only=True)
class CurveRecord(GroupRecord):
    """One point of a candidate's curve over batch sizes or context lengths."""

    family: str
    """The fixed lengths, as text."""
    candidate: str
    scenario: str
    size: int
    decode_tok_s: float | None
    ttft_ms: float | None
    need_gib: float | None
    speedup: Speedup


def curve_records(group: ComparisonGroup, axis: str) -> list[CurveRecord]:
    """Speed-ups and decode rates along an axis."""
    return [
        CurveRecord(
            group=group.title,
            family=family,
            candidate=curve.candidate,
            scenario=entry.workload.name,
            size=size,
            decode_tok_s=entry.median("decode_tokens_per_s"),
            ttft_ms=milli(entry.median("ttft_last_s")),
            need_gib=need_gib(entry),
            speedup=speedup_of(entry),
        )
        for family, members in families(curves(group, axis)).items()
        for curve in members
        for size, entry in curve.points
    ]


@dataclass(kw_only=True)
class KernelRecord(GroupRecord):
    """One point of a checkpoint's curve over batch sizes, on one kernel."""

    panel: str
    candidate: str
    scenario: str
    kernel: str
    size: int
    speedup: Speedup


def kernel_records(group: ComparisonGroup) -> list[KernelRecord]:
    return [
        KernelRecord(
            group=group.title,
            panel=f"{kernels.checkpoint}, {kernels.family}",
            candidate=curve.candidate,
            scenario=entry.workload.name,
            kernel=kernel,
            size=size,
            speedup=speedup_of(entry),
        )
        for kernels in choices_of_kernel(group)
        for kernel, curve in kernels.curves.items()
        for size, entry in curve.points
    ]


@dataclass(kw_only=True)
class CapacityRecord(GroupRecord):
    """Weights and KV cache of a candidate, which are the same for all workloads."""

    candidate: str
    weights_gib: float
    kv_tokens: float | None
    start_s: float | None


def capacity_records(group: ComparisonGroup) -> list[CapacityRecord]:
    records: dict[str, CapacityRecord] = {}
    for workload in group.workloads:
        for entry in workload.entries:
            memory = entry.row.memory
            if memory.weights_gib is None or entry.candidate in records:
                continue
            records[entry.candidate] = CapacityRecord(
                group=group.title,
                candidate=entry.candidate,
                weights_gib=memory.weights_gib,
                kv_tokens=memory.kv_cache_tokens,
                start_s=entry.row.startup.start_s,
            )
    return list(records.values())


@dataclass(kw_only=True)
class LimitRecord(GroupRecord):
    """The share of the hardware's limit that one phase reached."""

    scenario: str
    candidate: str
    phase: str
    share: float


def limit_records(group: ComparisonGroup) -> list[LimitRecord]:
    return [
        LimitRecord(
            group=group.title,
            scenario=workload.name,
            candidate=entry.candidate,
            phase=phase,
            share=share,
        )
        for workload in group.workloads
        for entry in workload.entries
        for phase, share in (
            ("prefill", entry.cell.prefill_share),
            ("decode", entry.cell.decode_share),
        )
        if share is not None
    ]
