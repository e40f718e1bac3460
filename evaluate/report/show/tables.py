"""The columns of all tables: titles, digits, units and sort keys, for any output format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from conf.models import ORIGINAL
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.recommend import between
from evaluate.report.published.figures import sources
from evaluate.report.show.published_records import (
    EngineRecord,
    PublishedContext,
    PublishedEngine,
    SweepPair,
    comparability,
    context_model,
    published_contexts,
    published_engines,
    published_operators,
)
from evaluate.report.show.record_sets import RecordSets
from evaluate.report.show.records import (
    CellRecord,
    CurveRecord,
    MedianWithInterval,
    Record,
    Speedup,
)
from evaluate.report.show.row_records import AccuracyRecord
from evaluate.report.show.terminal_tables import figure, plus_minus

NONE = "-"
Shown = TypeVar("Shown", contravariant=True)


@dataclass(frozen=True)
class Column(Generic[Shown]):
    """One column: its title, the field that sorts it, and how a record is shown in it."""

    title: str
    key: str
    shown: Callable[[Shown], str]
    explanation: str = ""
    is_text: bool = False
    is_phrase: bool = False
    """A number with text: it is aligned as text and sorted as a number."""


class OfCandidate(Protocol):
    candidate: str


class OfScenario(Protocol):
    scenario: str


class OfOperator(Protocol):
    profile: str
    name: str
    self_cpu_ms: float
    self_cuda_ms: float
    calls: int


def number(value: float | None) -> str:
    return NONE if value is None else figure(value)


def with_interval(value: MedianWithInterval | None) -> str:
    """A median, with the half width of its interval."""
    if value is None:
        return NONE
    if value.low is None or value.high is None or not value.median:
        return figure(value.median)
    return f"{figure(value.median)} ±{plus_minus(value.median, value.low, value.high)}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def rank(record: CellRecord) -> str:
    if record.rank is None:
        return NONE
    return f"{record.rank}{'=' if record.tied else ''}"


def speedup(value: Speedup) -> str:
    if value.ratio is None:
        return NONE
    text = f"{value.ratio:.2f} ({between(value.low, value.high)})"
    return text if value.differs else f"{text} ="


def cell_speedup(record: CellRecord) -> str:
    if record.checkpoint == ORIGINAL and record.speedup.differs is False:
        return "1"
    return speedup(record.speedup)


def ratio(value: MedianWithInterval) -> str:
    return f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


def quality(record: CellRecord) -> str:
    if record.recovery is None:
        return record.verdict or "not measured"
    if record.verdict == "the original":
        return "100%" if record.runs else NONE
    return f"{record.recovery:.2%}, {record.verdict}"


def limit(record: CellRecord) -> str:
    shares = [percent(record.prefill_share), percent(record.decode_share)]
    return NONE if shares == [NONE, NONE] else "\u00a0/ ".join(shares)


def note(record: CellRecord) -> str:
    remarks = []
    if record.invalid:
        remarks.append(f"{record.invalid} invalid")
    if record.outliers:
        remarks.append(f"{record.outliers} outlier left out")
    if record.rank is None:
        too_few = {0: "no valid run", 1: "one run"}
        remarks.append(f"not ranked: {too_few.get(record.runs, 'too much spread')}")
    return ", ".join(remarks)


def quality_left(record: AccuracyRecord) -> str:
    if record.recovery is None:
        return NONE
    low, high = record.recovery_low, record.recovery_high
    between = f" ({low:.2%} to {high:.2%})" if low is not None and high is not None else ""
    return f"{record.recovery:.2%}{between}"


CHECKPOINT: Column[OfCandidate] = Column(
    "checkpoint", "candidate", lambda r: r.candidate, is_text=True
)
SCENARIO: Column[OfScenario] = Column("scenario", "scenario", lambda r: r.scenario, is_text=True)
FIRST: tuple[Column[CellRecord], ...] = (
    Column("rank", "rank", rank, "those with = do not differ significantly"),
    CHECKPOINT,
    Column(
        "times as fast",
        "speedup",
        cell_speedup,
        "speed-up over the original, 95 % interval; = means no significant difference",
        is_phrase=True,
    ),
    Column(
        "latency (s)",
        "latency_s",
        lambda r: with_interval(r.latency_s),
        "of the whole batch; with a fixed arrival rate, of a request",
    ),
    Column(
        "TTFT (ms)",
        "ttft_ms",
        lambda r: with_interval(r.ttft_ms),
        "time to the last request's first token",
    ),
    Column(
        "TPOT (ms)",
        "tpot_ms",
        lambda r: with_interval(r.tpot_ms),
        "time for each token after the first",
    ),
    Column(
        "output (tok/s)",
        "output_tok_s",
        lambda r: with_interval(r.output_tok_s),
        "output tokens / latency",
    ),
    Column(
        "quality left",
        "recovery",
        quality,
        "share of the original's quality, by the measure that shows the most loss",
    ),
)
SECOND: tuple[Column[CellRecord], ...] = (
    Column(
        "overall (tok/s)",
        "overall_tok_s",
        lambda r: with_interval(r.overall_tok_s),
        "all tokens / latency",
    ),
    Column(
        "input (tok/s)",
        "input_tok_s",
        lambda r: with_interval(r.input_tok_s),
        "input tokens / TTFT",
    ),
    Column(
        "memory (GiB)",
        "need_gib",
        lambda r: number(r.need_gib),
        "weights, CUDA graphs and the KV cache of this load",
    ),
    Column(
        "J/token",
        "joules_per_token",
        lambda r: with_interval(r.joules_per_token),
        "energy per output token",
    ),
    Column(
        "fit at once",
        "kv_requests",
        lambda r: number(r.kv_requests),
        "how many such requests the KV cache holds",
    ),
    Column(
        "clock",
        "clock_share",
        lambda r: percent(r.clock_share),
        "share of the GPU's highest clock; less means the power limit was reached",
    ),
    Column("of limit", "decode_share", limit, "share of the hardware's limit: prefill / decode"),
    Column("kernel", "kernel", lambda r: r.kernel or NONE, is_text=True),
    Column("runs", "runs", lambda r: str(r.runs), "valid runs"),
    Column("note", "note", note, is_text=True),
)
GOODPUT: tuple[Column[CellRecord], ...] = (
    Column("requests/s", "requests_s", lambda r: with_interval(r.requests_s)),
    Column(
        "in time/s",
        "goodput_s",
        lambda r: with_interval(r.goodput_s),
        "requests that met their targets",
    ),
)
CONTEXT: tuple[Column[CurveRecord], ...] = (
    Column("tokens in", "size", lambda r: f"{r.size:,}"),
    CHECKPOINT,
    Column("decode (tok/s)", "decode_tok_s", lambda r: number(r.decode_tok_s)),
    Column("TTFT (ms)", "ttft_ms", lambda r: number(r.ttft_ms)),
    Column("memory (GiB)", "need_gib", lambda r: number(r.need_gib)),
    Column("times as fast", "speedup", lambda r: speedup(r.speedup), is_phrase=True),
)
WHERE: tuple[Column[EngineRecord], ...] = (
    Column("model", "model", lambda r: r.model or NONE, is_text=True),
    Column("GPU", "gpu", lambda r: r.gpu or NONE, is_text=True),
)
ENGINE: tuple[Column[EngineRecord], ...] = (
    *WHERE,
    SCENARIO,
    CHECKPOINT,
    Column("engine", "engine", lambda r: r.engine or NONE, is_text=True),
    Column("TTFT (ms)", "ttft_ms", lambda r: number(r.ttft_ms)),
    Column("TPOT (ms)", "tpot_ms", lambda r: number(r.tpot_ms)),
    Column("latency (s)", "latency_s", lambda r: number(r.latency_s)),
    Column("output (tok/s)", "output_tok_s", lambda r: number(r.output_tok_s)),
    Column("requests/s", "requests_s", lambda r: number(r.requests_s)),
)
PUBLISHED_ENGINE: tuple[Column[PublishedEngine], ...] = (
    Column("engine", "engine", lambda r: r.engine or NONE, is_text=True),
    Column("TTFT (ms)", "ttft_ms", lambda r: number(r.ttft_ms)),
    Column("TPOT (ms)", "tpot_ms", lambda r: number(r.tpot_ms)),
    Column("device", "device", lambda r: r.device or NONE, is_text=True),
    Column("versions", "versions", lambda r: r.versions or NONE, is_text=True),
)
SWEEP_PAIR: tuple[Column[SweepPair], ...] = (
    SCENARIO,
    CHECKPOINT,
    Column("here", "here", lambda r: ratio(r.here), "times as fast as the original, 95 % interval"),
    Column(
        "published", "published", lambda r: ratio(r.published), "the same, of the published runs"
    ),
)
OPERATOR: tuple[Column[OfOperator], ...] = (
    Column("profile", "profile", lambda r: r.profile or NONE, is_text=True),
    Column("operator", "name", lambda r: r.name or NONE, is_text=True),
    Column("self CPU (ms)", "self_cpu_ms", lambda r: number(r.self_cpu_ms)),
    Column("self CUDA (ms)", "self_cuda_ms", lambda r: number(r.self_cuda_ms)),
    Column("calls", "calls", lambda r: f"{r.calls:,}"),
)
PUBLISHED_CONTEXT: tuple[Column[PublishedContext], ...] = (
    Column("tokens in", "input_tokens", lambda r: f"{r.input_tokens:,}"),
    Column("engine", "engine", lambda r: r.engine or NONE, is_text=True),
    Column("format", "quantization", lambda r: r.quantization or NONE, is_text=True),
    Column("tok/s", "tok_s", lambda r: number(r.tok_s)),
    Column("memory (GB)", "memory_gb", lambda r: number(r.memory_gb)),
    Column("times bf16", "speedup", lambda r: number(r.speedup)),
)


ACCURACY: tuple[Column[AccuracyRecord], ...] = (
    Column("model", "model", lambda r: r.model, is_text=True),
    Column("checkpoint", "checkpoint", lambda r: r.candidate, is_text=True),
    Column("measure", "measure", lambda r: r.measure, is_text=True),
    Column("engine", "engine", lambda r: r.engine, is_text=True),
    Column(
        "perplexity or score",
        "score",
        lambda r: NONE if r.score is None else f"{r.score:.4g}",
        is_text=True,
    ),
    Column("quality left", "recovery", quality_left, is_text=True),
    Column("verdict", "verdict", lambda r: r.verdict or NONE, is_text=True),
    Column(
        "rank",
        "rank",
        lambda r: r.rank or NONE,
        "by comparisons in pairs: `1 to 2` are two that do not differ significantly",
        is_text=True,
    ),
)


@dataclass(frozen=True)
class PublishedTable:
    """Published figures, shown if we have figures of the same kind."""

    source: str
    title: str
    columns: tuple[Column[Any], ...]
    records: Sequence[Record]
    note: str
    """What the figures are of, and whether that is what was measured here."""


def published_tables(sets: RecordSets, groups: Sequence[ComparisonGroup]) -> list[PublishedTable]:
    """The published tables for which we have figures of the same kind."""
    known_sources = sources()

    def note(name: str, model: str) -> str:
        source = known_sources[name]
        return f"{source.title}. {comparability(model, source.hardware, groups)}"

    tables = []
    if sets.engines:
        name = "engine_comparison"
        engines, about = published_engines(), note(name, known_sources[name].model)
        tables.append(PublishedTable(name, "Engines (published)", PUBLISHED_ENGINE, engines, about))
    if sets.profiles:
        name = "operator_profile"
        operators, about = published_operators(), note(name, known_sources[name].model)
        tables.append(PublishedTable(name, "Operators (published)", OPERATOR, operators, about))
    if sets.contexts:
        name, model = "qwen2_context", context_model(groups)
        contexts, title = published_contexts(model), f"{model} over context length (published)"
        tables.append(PublishedTable(name, title, PUBLISHED_CONTEXT, contexts, note(name, model)))
    return tables


def explained_columns() -> list[Column[CellRecord]]:
    """The columns of scenarios whose titles do not say all."""
    return [column for column in (*FIRST, *GOODPUT, *SECOND) if column.explanation]


def used_columns(columns: Sequence[Column[Shown]], records: Sequence[Shown]) -> list[Column[Shown]]:
    """The columns that are not empty for all records."""
    return [c for c in columns if any(c.shown(record) not in ("", NONE) for record in records)]
