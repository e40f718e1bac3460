"""Tables of records, apart from how they are written: titles, digits, units, and what sorts."""

from collections.abc import Callable
from dataclasses import dataclass

from evaluate.report.decide.kernels import SUFFIX
from evaluate.report.show.beside import published_contexts, published_engines, published_operators
from evaluate.report.show.records import Record
from evaluate.report.show.sets import Sets
from evaluate.report.show.terminal_tables import figure, plus_minus

NONE = "-"
Shown = Callable[[Record], str]


@dataclass(frozen=True)
class Column:
    """One column: its title, the field that sorts it, and how a record is shown in it."""

    title: str
    key: str
    shown: Shown
    explanation: str = ""
    is_text: bool = False


def number(key: str, scale: float = 1.0, suffix: str = "") -> Shown:
    def shown(record: Record) -> str:
        value = record.get(key)
        return NONE if value is None else figure(value * scale) + suffix

    return shown


def whole(key: str) -> Shown:
    return lambda record: f"{record[key]:,}"


def measured(key: str) -> Shown:
    """A median, and how far its interval goes to either side."""

    def shown(record: Record) -> str:
        value = record.get(key)
        if value is None:
            return NONE
        low, high = record.get(f"{key}_low"), record.get(f"{key}_high")
        if low is None or high is None or not value:
            return figure(value)
        return f"{figure(value)} ±{plus_minus(value, low, high)}"

    return shown


def text(key: str) -> Shown:
    return lambda record: str(record.get(key) or NONE)


def kernels(record: Record) -> str:
    """Without the ending that all of their names have."""
    names = [name.removesuffix(SUFFIX) for name in (record.get("kernel") or "").split(", ")]
    return ", ".join(names) or NONE


def percent(key: str, digits: int = 0) -> Shown:
    def shown(record: Record) -> str:
        value = record.get(key)
        return NONE if value is None else f"{value:.{digits}%}"

    return shown


def rank(record: Record) -> str:
    if record["rank"] is None:
        return NONE
    return f"{record['rank']}{'=' if record['tied'] else ''}"


def speedup(record: Record) -> str:
    value = record.get("speedup")
    if value is None:
        return NONE
    if record.get("differs") is False and record.get("checkpoint") == "original":
        return "1"
    between = f"{value:.2f} ({record['speedup_low']:.2f} to {record['speedup_high']:.2f})"
    return between if record["differs"] else f"{between} ="


def ratio(source: str) -> Shown:
    def shown(record: Record) -> str:
        value = record.get(source)
        if value is None:
            return NONE
        low, high = record[f"{source}_low"], record[f"{source}_high"]
        return f"{value:.2f} ({low:.2f} to {high:.2f})"

    return shown


def quality(record: Record) -> str:
    if record.get("recovery") is None:
        return record.get("verdict") or "not measured"
    if record["verdict"] == "the original":
        return "100%" if record["runs"] else NONE
    return f"{record['recovery']:.2%}, {record['verdict']}"


def limit(record: Record) -> str:
    shares = [percent(key)(record) for key in ("prefill_share", "decode_share")]
    return NONE if shares == [NONE, NONE] else "\u00a0/ ".join(shares)


def note(record: Record) -> str:
    words = []
    if record["invalid"]:
        words.append(f"{record['invalid']} invalid")
    if record.get("outliers"):
        words.append(f"{record['outliers']} outlier left out")
    if record["rank"] is None:
        few = {0: "no valid run", 1: "one run"}
        words.append(f"not ranked: {few.get(record['runs'], 'too much spread')}")
    return ", ".join(words)


FIRST = (
    Column("rank", "rank", rank, "= : no significant difference within the rank"),
    Column("checkpoint", "candidate", text("candidate"), is_text=True),
    Column(
        "times as fast",
        "speedup",
        speedup,
        "speed-up over the original, 95 % interval; = : no significant difference",
    ),
    Column(
        "latency (s)",
        "latency_s",
        measured("latency_s"),
        "of the whole batch; with a fixed arrival rate, of a request",
    ),
    Column("TTFT (ms)", "ttft_ms", measured("ttft_ms"), "time to the last request's first token"),
    Column("TPOT (ms)", "tpot_ms", measured("tpot_ms"), "time for each token after the first"),
    Column("output (tok/s)", "output_tok_s", measured("output_tok_s"), "output tokens / latency"),
    Column(
        "quality left",
        "recovery",
        quality,
        "share of the original's quality, by the measure that shows the most loss",
    ),
)
SECOND = (
    Column("overall (tok/s)", "overall_tok_s", measured("overall_tok_s"), "all tokens / latency"),
    Column("input (tok/s)", "input_tok_s", measured("input_tok_s"), "input tokens / TTFT"),
    Column(
        "memory (GiB)",
        "need_gib",
        number("need_gib"),
        "weights, CUDA graphs and the KV cache of this load",
    ),
    Column("J/token", "joules_per_token", measured("joules_per_token"), "energy per output token"),
    Column(
        "fit at once",
        "kv_requests",
        number("kv_requests"),
        "how many such requests the KV cache holds",
    ),
    Column(
        "clock",
        "clock_share",
        percent("clock_share"),
        "share of the GPU's highest clock; less means the power limit was reached",
    ),
    Column("of limit", "decode_share", limit, "share of the hardware's limit: prefill / decode"),
    Column("kernel", "kernel", kernels, is_text=True),
    Column("runs", "runs", lambda record: str(record["runs"]), "valid runs"),
    Column("note", "note", note, is_text=True),
)
CHECKPOINT = FIRST[1]
SCENARIO = Column("scenario", "scenario", text("scenario"), is_text=True)
GOODPUT = (
    Column("requests/s", "requests_s", measured("requests_s")),
    Column("in time/s", "goodput_s", measured("goodput_s"), "requests that met their targets"),
)
CONTEXT = (
    Column("tokens in", "size", whole("size")),
    CHECKPOINT,
    Column("decode (tok/s)", "decode_tok_s", number("decode_tok_s")),
    Column("TTFT (ms)", "ttft_ms", number("ttft_ms")),
    Column("memory (GiB)", "need_gib", number("need_gib")),
    Column("times as fast", "speedup", speedup),
)
WHERE = (
    Column("model", "model", text("model"), is_text=True),
    Column("GPU", "gpu", text("gpu"), is_text=True),
)
ENGINE = (
    *WHERE,
    SCENARIO,
    CHECKPOINT,
    Column("engine", "engine", text("engine"), is_text=True),
    Column("TTFT (ms)", "ttft_ms", number("ttft_ms")),
    Column("TPOT (ms)", "tpot_ms", number("tpot_ms")),
    Column("latency (s)", "latency_s", number("latency_s")),
    Column("output (tok/s)", "output_tok_s", number("output_tok_s")),
    Column("requests/s", "requests_s", number("requests_s")),
)
PUBLISHED_ENGINE = (
    Column("engine", "engine", text("engine"), is_text=True),
    Column("TTFT (ms)", "ttft_ms", number("ttft_ms")),
    Column("TPOT (ms)", "tpot_ms", number("tpot_ms")),
    Column("device", "device", text("device"), is_text=True),
    Column("versions", "versions", text("versions"), is_text=True),
)
SWEEP_PAIR = (
    SCENARIO,
    CHECKPOINT,
    Column("here", "here", ratio("here"), "times as fast as the original, 95 % interval"),
    Column("published", "published", ratio("published"), "the same, of the published runs"),
)
OPERATOR = (
    Column("profile", "profile", text("profile"), is_text=True),
    Column("operator", "name", text("name"), is_text=True),
    Column("self CPU (ms)", "self_cpu_ms", number("self_cpu_ms")),
    Column("self CUDA (ms)", "self_cuda_ms", number("self_cuda_ms")),
    Column("calls", "calls", whole("calls")),
)
PUBLISHED_CONTEXT = (
    Column("tokens in", "input_tokens", whole("input_tokens")),
    Column("engine", "engine", text("engine"), is_text=True),
    Column("format", "quantization", text("quantization"), is_text=True),
    Column("tok/s", "tok_s", number("tok_s")),
    Column("memory (GB)", "memory_gb", number("memory_gb")),
    Column("times bf16", "speedup", number("speedup")),
)


@dataclass(frozen=True)
class PublishedTable:
    """Figures of others, shown where we have figures of the same kind."""

    source: str
    title: str
    columns: tuple[Column, ...]
    records: list[Record]


def published_tables(sets: Sets) -> list[PublishedTable]:
    """Those that have something of ours beside them."""
    found = []
    if sets.engines:
        title = "Engines (published)"
        found.append(
            PublishedTable("engine_comparison", title, PUBLISHED_ENGINE, published_engines())
        )
    if sets.profiles:
        title = "Operators (published)"
        found.append(PublishedTable("operator_profile", title, OPERATOR, published_operators()))
    if sets.contexts:
        title = "Qwen2-7B-Instruct over context length (published)"
        found.append(
            PublishedTable("qwen2_context", title, PUBLISHED_CONTEXT, published_contexts())
        )
    return found
