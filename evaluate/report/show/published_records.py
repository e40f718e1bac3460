"""Records that compare our figures with published ones, and engines with each other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from conf.hardware import CPU
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.published.figures import (
    SweepLoad,
    context_figures,
    engine_figures,
    operator_figures,
    sweep_loads,
    sweep_speedups,
)
from evaluate.report.show.records import GroupRecord, MedianWithInterval, Record, Speedup, milli
from evaluate.results.row_types import WorkloadSettings

HERE, PUBLISHED = "here", "published"
USUAL_MODEL = "Qwen2-7B-Instruct"
NOT_THE_SAME = (
    "It is another model or other hardware than here: its times cannot be compared with ours, "
    "ratios within the table at most."
)


def is_model(name: str, published_name: str) -> bool:
    """Whether a published name is that of our model: it may add an organization or a variant."""
    return _words(name) <= _words(published_name)


def comparability(model: str, hardware: str, groups: Sequence[ComparisonGroup]) -> str:
    """Model and hardware of published figures, and whether they are those of a group of ours."""
    text = f"Model: {model}; hardware: {hardware}."
    is_here = any(
        is_model(group.model, model) and _words(hardware) <= _words(group.device)
        for group in groups
    )
    return text if is_here else f"{text} {NOT_THE_SAME}"


def _words(name: str) -> set[str]:
    return set(re.split(r"[\W_]+", name.lower().replace(".", "point"))) - {""}


@dataclass(kw_only=True)
class SweepRecord(GroupRecord):
    """A speed-up, ours or a published one."""

    scenario: str
    candidate: str
    source: str
    speedup: Speedup


def sweep_records(group: ComparisonGroup) -> list[SweepRecord]:
    """Our speed-ups and the published ones, for equal recipes and loads. GPUs and models differ,
    but speed-ups over the original of the same GPU can still be compared. A scenario that ran with
    a load of the user's own is another one, whatever its name. Those of a CPU say nothing about a
    GPU's."""
    if group.rows[0].environment.device == CPU:
        return []
    published, loads = sweep_speedups(), sweep_loads()
    records = []
    for workload in group.workloads:
        if not _is_load(workload.settings, loads.get(workload.measure)):
            continue
        for entry in workload.entries:
            published_ratio = published.get((entry.candidate, workload.measure))
            if published_ratio is None or entry.ratio is None:
                continue
            records += [
                SweepRecord(
                    group=group.title,
                    scenario=workload.name,
                    candidate=entry.candidate,
                    source=source,
                    speedup=Speedup.of(ratio),
                )
                for source, ratio in ((HERE, entry.ratio), (PUBLISHED, published_ratio))
            ]
    return records


def _is_load(settings: WorkloadSettings, load: SweepLoad | None) -> bool:
    """Whether a workload is the published one."""
    if load is None:
        return False
    given = {name: value for name, value in settings.content().items() if value is not None}
    names = ("batch", "input_tokens", "output_tokens")
    return given == {name: getattr(load, name) for name in names}


@dataclass(kw_only=True)
class SweepPair(GroupRecord):
    """Our speed-up and the published one."""

    scenario: str
    candidate: str
    here: MedianWithInterval
    published: MedianWithInterval


def sweep_pairs(records: list[SweepRecord]) -> list[SweepPair]:
    """Records come in pairs: ours, then the published one."""
    return [
        SweepPair(
            group=here.group,
            scenario=here.scenario,
            candidate=here.candidate,
            here=_ratio(here.speedup),
            published=_ratio(published.speedup),
        )
        for here, published in zip(records[::2], records[1::2], strict=True)
    ]


def _ratio(speedup: Speedup) -> MedianWithInterval:
    assert speedup.ratio is not None
    return MedianWithInterval(speedup.ratio, speedup.low, speedup.high)


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
                key = (group.model, group.device, workload.measure, lengths, entry.checkpoint)
                records.setdefault(key, []).append(
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
    engine_groups = [
        engine_group
        for engine_group in records.values()
        if len({r.engine for r in engine_group}) > 1
    ]
    return [record for engine_group in engine_groups for record in engine_group]


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
    """Speed-up over bf16 in the same engine and at the same length."""


def context_model(groups: Sequence[ComparisonGroup]) -> str:
    """The published model that was measured here, too; else the one that most people know."""
    models = dict.fromkeys(figure.model for figure in context_figures())
    here = [model for model in models if any(is_model(group.model, model) for group in groups)]
    return next(iter(here), USUAL_MODEL)


def published_contexts(model: str) -> list[PublishedContext]:
    """Published rates over context length, each with its speed-up over bf16."""
    figures = [figure for figure in context_figures() if figure.model == model]
    bf16_rates = {
        (figure.engine, figure.input_tokens, figure.note): figure.tokens_per_s
        for figure in figures
        if figure.quantization == "bf16"
    }
    records = []
    for figure in figures:
        bf16_rate = bf16_rates.get((figure.engine, figure.input_tokens, figure.note))
        records.append(
            PublishedContext(
                input_tokens=figure.input_tokens,
                engine=figure.engine,
                quantization=figure.quantization,
                tok_s=figure.tokens_per_s,
                memory_gb=figure.memory_gb,
                speedup=figure.tokens_per_s / bf16_rate if bf16_rate else None,
            )
        )
    return records
