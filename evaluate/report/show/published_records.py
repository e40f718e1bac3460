"""Our figures beside published ones, and engines beside each other."""

from dataclasses import dataclass

from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.published.figures import (
    context_figures,
    engine_figures,
    operator_figures,
    sweep_speedups,
)
from evaluate.report.show.records import GroupRecord, Median, Record, Speedup, milli

OURS, PUBLISHED = "here", "published"


@dataclass(kw_only=True)
class SweepRecord(GroupRecord):
    """A speed-up, ours or a published one."""

    scenario: str
    candidate: str
    source: str
    speedup: Speedup


def sweep_records(group: ComparisonGroup) -> list[SweepRecord]:
    """Speed-up beside speed-up, where recipe and scenario are the same: GPUs differ, and what a
    recipe gains over its own original can still be compared."""
    published = sweep_speedups()
    found = []
    for workload in group.workloads:
        for entry in workload.entries:
            theirs = published.get((entry.candidate, workload.name))
            if theirs is None or entry.ratio is None:
                continue
            found += [
                SweepRecord(
                    group=group.title,
                    scenario=workload.name,
                    candidate=entry.candidate,
                    source=source,
                    speedup=Speedup(ratio.ratio, ratio.low, ratio.high, ratio.differs),
                )
                for source, ratio in ((OURS, entry.ratio), (PUBLISHED, theirs))
            ]
    return found


@dataclass(kw_only=True)
class SweepPair(GroupRecord):
    """Our speed-up and the published one."""

    scenario: str
    candidate: str
    here: Median
    published: Median


def sweep_pairs(records: list[SweepRecord]) -> list[SweepPair]:
    """Records come in pairs: ours, then the published one."""
    return [
        SweepPair(
            group=ours.group,
            scenario=ours.scenario,
            candidate=ours.candidate,
            here=_ratio(ours.speedup),
            published=_ratio(theirs.speedup),
        )
        for ours, theirs in zip(records[::2], records[1::2], strict=True)
    ]


def _ratio(speedup: Speedup) -> Median:
    assert speedup.ratio is not None
    return Median(speedup.ratio, speedup.low, speedup.high)


@dataclass(kw_only=True)
class EngineRecord(Record):
    """A candidate under a workload in one of several engines."""

    model: str
    gpu: str
    scenario: str
    candidate: str
    engine: str
    ttft_ms: float | None
    tpot_ms: float | None
    latency_s: float | None
    output_tok_s: float | None
    requests_s: float | None

    def belongs_to(self, group: ComparisonGroup) -> bool:
        return (group.model, group.device) == (self.model, self.gpu)

    @property
    def plotted_with(self) -> str:
        return self.gpu


def engine_records(groups: list[ComparisonGroup]) -> list[EngineRecord]:
    """One checkpoint under one workload in several engines on the same device."""
    records: dict[tuple[str, ...], list[EngineRecord]] = {}
    for group in groups:
        for workload in group.workloads:
            for entry in workload.entries:
                if not entry.cell.valid:
                    continue
                lengths = entry.cell.settings_name
                place = (group.model, group.device, workload.measure, lengths, entry.checkpoint)
                records.setdefault(place, []).append(
                    EngineRecord(
                        model=group.model,
                        gpu=group.device,
                        scenario=workload.name,
                        candidate=entry.candidate,
                        engine=group.engine_title,
                        ttft_ms=milli(entry.median("ttft_last_s")),
                        tpot_ms=milli(entry.median("tpot_median_s")),
                        latency_s=entry.median("latency_s"),
                        output_tok_s=entry.median("generated_tokens_per_s"),
                        requests_s=entry.median("requests_per_s"),
                    )
                )
    several = [part for part in records.values() if len({r.engine for r in part}) > 1]
    return [record for part in several for record in part]


@dataclass(kw_only=True)
class PublishedEngine(Record):
    engine: str
    ttft_ms: float
    tpot_ms: float
    device: str
    versions: str


def published_engines() -> list[PublishedEngine]:
    return [
        PublishedEngine(
            engine=f"{figure.engine} ({figure.kernel} kernel)",
            ttft_ms=figure.ttft_ms,
            tpot_ms=figure.tpot_ms,
            device=figure.device,
            versions=figure.versions,
        )
        for figure in engine_figures()
    ]


@dataclass(kw_only=True)
class PublishedOperator(Record):
    profile: str
    name: str
    self_cpu_ms: float
    self_cuda_ms: float
    calls: int


def published_operators() -> list[PublishedOperator]:
    return [
        PublishedOperator(
            profile=PUBLISHED,
            name=figure.name,
            self_cpu_ms=figure.self_cpu_ms,
            self_cuda_ms=figure.self_cuda_ms,
            calls=figure.calls,
        )
        for figure in operator_figures()
    ]


@dataclass(kw_only=True)
class PublishedContext(Record):
    input_tokens: int
    engine: str
    quantization: str
    tok_s: float
    memory_gb: float | None
    speedup: float | None
    """Over the bf16 of the same engine and length."""


def published_contexts(parameters: str = "7B") -> list[PublishedContext]:
    """Published rates over context length, each beside its own bf16."""
    figures = [figure for figure in context_figures() if figure.parameters == parameters]
    plain = {
        (figure.engine, figure.input_tokens, figure.note): figure.tokens_per_s
        for figure in figures
        if figure.quantization == "bf16"
    }
    found = []
    for figure in figures:
        base = plain.get((figure.engine, figure.input_tokens, figure.note))
        found.append(
            PublishedContext(
                input_tokens=figure.input_tokens,
                engine=figure.engine,
                quantization=figure.quantization,
                tok_s=figure.tokens_per_s,
                memory_gb=figure.memory_gb,
                speedup=figure.tokens_per_s / base if base else None,
            )
        )
    return found
