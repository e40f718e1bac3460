"""The records that tables and charts show of single rows: accuracy, profiles and layers."""

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass

from conf.schema.kernels import KERNELS_OPTION, VLLM
from evaluate.accuracy.ranks import judged_in, rank_ranges
from evaluate.measure.profiles import phases, readable
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.show.records import MILLI, Record
from evaluate.results.cells import differing, kernels_of
from evaluate.results.row_values import QuickAccuracy, TaskAccuracy
from evaluate.results.rows import AccuracyRow, ProfileRow, Row, SensitivityRow

OPERATORS = 10
NAME_LENGTH = 80


@dataclass(kw_only=True)
class ModelRecord(Record):
    """A record that is shown for all comparison groups of a model."""

    model: str
    candidate: str

    def belongs_to(self, group: ComparisonGroup) -> bool:
        return group.model == self.model


@dataclass(kw_only=True)
class AccuracyRecord(ModelRecord):
    """One accuracy result of a checkpoint."""

    measure: str
    engine: str
    score: float | None
    """The score, or the perplexity."""
    recovery: float | None
    recovery_low: float | None
    recovery_high: float | None
    verdict: str | None
    rank: str | None
    """Among checkpoints that were judged alike, on one device: `1 to 2` where two are level. None
    where they cannot be compared in pairs."""


def accuracy_records(rows: Sequence[Row]) -> list[AccuracyRecord]:
    ranges = rank_ranges(rows)
    engines = _engines([row for row in rows if isinstance(row, AccuracyRow)], ranges)
    return [
        AccuracyRecord(
            model=row.model,
            candidate=row.checkpoint,
            measure=row.measure,
            engine=engines[id(row)],
            score=_score(row.values),
            recovery=row.values.recovery,
            recovery_low=row.values.recovery_low,
            recovery_high=row.values.recovery_high,
            verdict=row.values.verdict,
            rank=str(ranges[id(row)]) if id(row) in ranges else None,
        )
        for row in rows
        if isinstance(row, AccuracyRow)
    ]


def _engines(rows: list[AccuracyRow], ranked: Container[int]) -> dict[int, str]:
    """The engine of each row, by its id. Where checkpoints were ranked on several devices or
    versions, the facts in which those differ are added."""
    names = {id(row): _engine(row) for row in rows}
    by_engine: dict[object, list[AccuracyRow]] = defaultdict(list)
    for row in rows:
        if id(row) in ranked:
            by_engine[row.model, row.measure, names[id(row)]].append(row)
    for group in by_engine.values():
        if len({judged_in(row) for row in group}) == 1:
            continue
        own_facts = differing([row.environment.facts("device", "versions") for row in group])
        for row, facts in zip(group, own_facts, strict=True):
            added = [
                value if name == "device" else f"{name} {value}" for name, value in facts.items()
            ]
            names[id(row)] = ", ".join([names[id(row)], *added])
    return names


def _engine(row: AccuracyRow) -> str:
    """The engine, and our kernels where they were offered: they may round differently."""
    engine, kernels = row.environment.engine or "", kernels_of(row)
    return engine if kernels == VLLM else f"{engine}, {KERNELS_OPTION}={kernels}"


def _score(values: QuickAccuracy | TaskAccuracy) -> float | None:
    if isinstance(values, QuickAccuracy) and values.perplexity is not None:
        return values.perplexity
    return values.score


@dataclass(kw_only=True)
class OfProfile(ModelRecord):
    """A record of a profile; shown for all comparison groups of its model and engine."""

    scenario: str
    engine: str

    def belongs_to(self, group: ComparisonGroup) -> bool:
        return super().belongs_to(group) and group.engine == self.engine


@dataclass(kw_only=True)
class ProfileRecord(OfProfile):
    """The time of one kind of operator in a step."""

    phase: str
    profile: str
    kind: str
    ms: float
    share: float


def profile_records(rows: Sequence[Row]) -> list[ProfileRecord]:
    """The records of all profiles, by phase if the trace marks steps."""
    records = []
    for row, title in _profile_names(rows):
        for phase in phases(row.values):
            step = f", a {phase.name} step of {phase.window_s / phase.steps * MILLI:.3g} ms"
            # The sum exceeds the window if kernels run in parallel.
            total_s = max(phase.window_s, sum(phase.kinds_s.values()))
            records += [
                ProfileRecord(
                    model=row.model,
                    candidate=row.checkpoint,
                    scenario=row.measure,
                    engine=row.environment.engine or "",
                    phase=phase.name,
                    profile=title + (step if phase.name else ""),
                    kind=kind,
                    ms=seconds / phase.steps * MILLI,
                    share=seconds / total_s,
                )
                for kind, seconds in phase.kinds_s.items()
            ]
    return records


def _profile_names(rows: Sequence[Row]) -> list[tuple[ProfileRow, str]]:
    """Each profile with a name: its checkpoint, and the facts in which profiles differ."""
    profiles = [row for row in rows if isinstance(row, ProfileRow)]
    own_facts = differing([_profile_facts(row) for row in profiles])
    return [
        (row, ", ".join([row.checkpoint, *facts.values()]))
        for row, facts in zip(profiles, own_facts, strict=True)
    ]


def _profile_facts(row: Row) -> dict[str, str]:
    """The facts that a profile depends on, except its checkpoint."""
    options = row.environment.facts("engine_options")
    return {
        "model": row.model,
        "measure": row.measure,
        **row.environment.facts("engine", "device"),
        **{name: f"{name}={value}" for name, value in options.items()},
    }


@dataclass(kw_only=True)
class OperatorRecord(OfProfile):
    """One of the operators that take the most time of a profile."""

    profile: str
    name: str
    self_cpu_ms: float
    self_cuda_ms: float
    calls: int


def operator_records(rows: Sequence[Row]) -> list[OperatorRecord]:
    return [
        OperatorRecord(
            model=row.model,
            candidate=row.checkpoint,
            scenario=row.measure,
            engine=row.environment.engine or "",
            profile=title,
            name=readable(operator.name)[:NAME_LENGTH],
            self_cpu_ms=operator.self_cpu_s * MILLI,
            self_cuda_ms=operator.self_cuda_s * MILLI,
            calls=operator.calls,
        )
        for row, title in _profile_names(rows)
        for operator in row.values.operators[:OPERATORS]
    ]


@dataclass(kw_only=True)
class SensitivityRecord(ModelRecord):
    """The divergence of one block, in the model's order."""

    panel: str
    block: str
    divergence: float
    mib: float
    advice: str


def sensitivity_records(rows: Sequence[Row]) -> list[SensitivityRecord]:
    return [
        SensitivityRecord(
            model=row.model,
            candidate=row.checkpoint,
            panel=f"{row.model}, {row.checkpoint}",
            block=block.block,
            divergence=block.divergence,
            mib=block.bytes / 2**20,
            advice="worth leaving out" if block.block in row.values.worth_ignoring else "quantize",
        )
        for row in rows
        if isinstance(row, SensitivityRow)
        for block in row.values.blocks
    ]
