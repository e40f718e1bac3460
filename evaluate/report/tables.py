"""Tables of records, apart from how they are written: titles, digits, units, and what sorts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evaluate.report.beside import published_contexts, published_engines
from evaluate.report.records import Record
from evaluate.table import figure

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


def measured(key: str) -> Shown:
    """A median, and how far its interval goes to either side."""

    def shown(record: Record) -> str:
        value = record.get(key)
        if value is None:
            return NONE
        low, high = record.get(f"{key}_low"), record.get(f"{key}_high")
        if low is None or high is None or not value:
            return figure(value)
        return f"{figure(value)} ±{(high - low) / 2 / value:.1%}"

    return shown


def text(key: str) -> Shown:
    return lambda record: str(record.get(key) or NONE)


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


def quality(record: Record) -> str:
    if record.get("recovery") is None:
        return record.get("verdict") or "not measured"
    if record["verdict"] == "the original":
        return "100%"
    return f"{record['recovery']:.2%}, {record['verdict']}"


def limit(record: Record) -> str:
    shares = [percent(key)(record) for key in ("prefill_share", "decode_share")]
    return NONE if shares == [NONE, NONE] else " / ".join(shares)


def note(record: Record) -> str:
    words = []
    if record["invalid"]:
        words.append(f"{record['invalid']} invalid")
    if record.get("outliers"):
        words.append(f"{record['outliers']} outlier left out")
    if record["rank"] is None:
        words.append("not ranked: one run" if record["runs"] < 2 else "not ranked: spread")
    return ", ".join(words)


FIRST = (
    Column("rank", "rank", rank, "= : cannot be told from others of the same rank"),
    Column("checkpoint", "candidate", text("candidate"), is_text=True),
    Column(
        "times as fast", "speedup", speedup, "as the original, 95 % interval; = : no difference"
    ),
    Column("latency (s)", "latency_s", measured("latency_s"), "median, 95 % interval of the mean"),
    Column("TTFT (ms)", "ttft_ms", measured("ttft_ms"), "time to the last request's first token"),
    Column("TPOT (ms)", "tpot_ms", measured("tpot_ms"), "time for each token after the first"),
    Column("output (tok/s)", "output_tok_s", measured("output_tok_s"), "tokens out / latency"),
    Column("quality left", "recovery", quality, "of the original's, by the worst measure"),
)
SECOND = (
    Column("overall (tok/s)", "overall_tok_s", measured("overall_tok_s"), "all tokens / latency"),
    Column("input (tok/s)", "input_tok_s", measured("input_tok_s"), "tokens in / last TTFT"),
    Column("memory (GiB)", "need_gib", number("need_gib"), "weights, graphs and this load's cache"),
    Column("J/token", "joules_per_token", measured("joules_per_token"), "energy per output token"),
    Column("of limit", "decode_share", limit, "share of the hardware's limit, prefill / decode"),
    Column("kernel", "kernel", text("kernel"), is_text=True),
    Column("runs", "runs", lambda record: str(record["runs"]), "that count"),
    Column("note", "note", note, is_text=True),
)
CHECKPOINT = FIRST[1]
SCENARIO = Column("scenario", "scenario", text("scenario"), is_text=True)
GOODPUT = (
    Column("requests/s", "requests_s", measured("requests_s")),
    Column("in time/s", "goodput_s", measured("goodput_s"), "requests that met their targets"),
)
CONTEXT = (
    Column("tokens in", "size", number("size")),
    CHECKPOINT,
    Column("decode (tok/s)", "decode_tok_s", number("decode_tok_s")),
    Column("TTFT (ms)", "ttft_ms", number("ttft_ms")),
    Column("memory (GiB)", "need_gib", number("need_gib")),
    Column("times as fast", "speedup", speedup),
)
ENGINE = (
    SCENARIO,
    CHECKPOINT,
    Column("engine", "engine", text("engine"), is_text=True),
    Column("TTFT (ms)", "ttft_ms", number("ttft_ms")),
    Column("TPOT (ms)", "tpot_ms", number("tpot_ms")),
    Column("latency (s)", "latency_s", number("latency_s")),
)
PUBLISHED_ENGINE = (
    Column("engine", "engine", text("engine"), is_text=True),
    Column("TTFT (ms)", "ttft_ms", number("ttft_ms")),
    Column("TPOT (ms)", "tpot_ms", number("tpot_ms")),
    Column("device", "device", text("device"), is_text=True),
    Column("versions", "versions", text("versions"), is_text=True),
)
PUBLISHED_CONTEXT = (
    Column("tokens in", "input_tokens", number("input_tokens")),
    Column("engine", "engine", text("engine"), is_text=True),
    Column("format", "quantization", text("quantization"), is_text=True),
    Column("tok/s", "tok_s", number("tok_s")),
    Column("memory (GB)", "memory_gb", number("memory_gb")),
    Column("times bf16", "speedup", number("speedup")),
)


def published_tables() -> list[tuple[str, str, tuple[Column, ...], list[Record]]]:
    """Name of its source, title, columns and records of each published table."""
    return [
        (
            "engine_comparison",
            "Engines (published)",
            PUBLISHED_ENGINE,
            published_engines(),
        ),
        (
            "qwen2_context",
            "Qwen2-7B-Instruct over context length (published)",
            PUBLISHED_CONTEXT,
            published_contexts(),
        ),
    ]


def sort_value(column: Column, record: Record) -> Any:
    value = record.get(column.key)
    return "" if value is None else value
