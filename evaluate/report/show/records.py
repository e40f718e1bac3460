"""Plain records of everything that is shown: for tables, for charts, for the page's data."""

from typing import Any

from conf.models import ORIGINAL
from evaluate.measure.profiles import phases, readable
from evaluate.report.decide.comparable import Entry, Ground
from evaluate.report.decide.curves import BATCH, CONTEXT, curves, families
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.quality import Qualities
from evaluate.results.cells import differing
from evaluate.results.rows import ProfileRow, Row, SensitivityRow
from evaluate.results.summary import Summary

Record = dict[str, Any]
MILLI = 1e3
# What a summary is shown of: its name in the record, in the rows, and its scale.
SUMMARIES = {
    "latency_s": ("latency_s", 1.0),
    "ttft_ms": ("ttft_last_s", MILLI),
    "tpot_ms": ("tpot_median_s", MILLI),
    "output_tok_s": ("generated_tokens_per_s", 1.0),
    "decode_tok_s": ("decode_tokens_per_s", 1.0),
    "overall_tok_s": ("overall_tokens_per_s", 1.0),
    "input_tok_s": ("input_tokens_per_s", 1.0),
    "requests_s": ("requests_per_s", 1.0),
    "goodput_s": ("goodput_requests_per_s", 1.0),
    "joules_per_token": ("joules_per_output_token", 1.0),
}
SHOWN_RUNS = 12
OPERATORS = 10
NAME_LENGTH = 80


def cell_records(ground: Ground, qualities: Qualities) -> list[Record]:
    """One record for each candidate under each load."""
    return [_record(ground, entry, qualities) for load in ground.loads for entry in load.entries]


def _record(ground: Ground, entry: Entry, qualities: Qualities) -> Record:
    row, cell = entry.row, entry.cell
    found: Record = {
        "ground": ground.title,
        "model": ground.model,
        "gpu": ground.device,
        "engine": ground.engine_version,
        "scenario": entry.load.name,
        "candidate": entry.candidate,
        "checkpoint": entry.checkpoint,
        "rank": entry.rank,
        "tied": entry.tied,
        "runs": len(cell.valid),
        "invalid": len(cell.invalid),
        "kernel": ", ".join(sorted(set(row.kernels.values()))),
        "weights_gib": row.memory.weights_gib,
        "need_gib": need_gib(entry),
        "kv_tokens": row.memory.kv_cache_tokens,
        "kv_requests": row.memory.kv_cache_requests,
        "clock_share": entry.clock_share,
        "prefill_share": cell.prefill_share,
        "decode_share": cell.decode_share,
        "batch": row.settings.batch,
        "input_tokens": row.settings.input_tokens,
        "output_tokens": row.settings.output_tokens,
        "latencies": _runs(cell.values(cell.ranked_by)),
    }
    for name, (value, scale) in SUMMARIES.items():
        # How long an open loop lasts is set by its arrivals: there a request's time is shown.
        shown = cell.ranked_by if name == "latency_s" else value
        found |= _summary(name, cell.summary(shown), scale)
    return found | speedup_record(entry) | _quality(entry, qualities)


def _summary(name: str, summary: Summary | None, scale: float) -> Record:
    if summary is None:
        return {name: None}
    found: Record = {name: summary.median * scale}
    if summary.runs > 1:
        found |= {f"{name}_low": summary.low * scale, f"{name}_high": summary.high * scale}
    if name == "latency_s":
        found["outliers"] = len(summary.outliers)
    return found


def speedup_record(entry: Entry) -> Record:
    ratio = entry.ratio
    if entry.checkpoint == ORIGINAL and ratio is None and entry.cell.valid:
        return {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0, "differs": False}
    if ratio is None:
        return {"speedup": None, "speedup_low": None, "speedup_high": None, "differs": None}
    return {
        "speedup": ratio.ratio,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "differs": ratio.differs,
    }


def _quality(entry: Entry, qualities: Qualities) -> Record:
    quality = qualities.of(entry)
    if quality is None:
        return {"recovery": None, "recovery_low": None, "recovery_high": None, "verdict": None}
    return {
        "recovery": quality.recovery,
        "recovery_low": quality.low,
        "recovery_high": quality.high,
        "verdict": quality.verdict,
    }


def milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MILLI


def _runs(values: list[float]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:SHOWN_RUNS])
    return shown + (" …" if len(values) > SHOWN_RUNS else "")


def curve_records(ground: Ground, axis: str) -> list[Record]:
    """Speed-ups and decode rates along an axis, one record a point."""
    found = []
    for family, members in families(curves(ground, axis)).items():
        for curve in members:
            for size, entry in curve.points:
                decode = entry.median("decode_tokens_per_s")
                point = {
                    "ground": ground.title,
                    "family": family,
                    "candidate": curve.candidate,
                    "scenario": entry.load.name,
                    "size": size,
                    "decode_tok_s": decode,
                    "ttft_ms": milli(entry.median("ttft_last_s")),
                    "need_gib": need_gib(entry),
                }
                found.append(point | speedup_record(entry))
    return found


def batch_records(ground: Ground) -> list[Record]:
    return curve_records(ground, BATCH)


def context_records(ground: Ground) -> list[Record]:
    return curve_records(ground, CONTEXT)


def capacity_records(ground: Ground) -> list[Record]:
    """Weights and cache of each candidate, which no load changes."""
    found: dict[str, Record] = {}
    for load in ground.loads:
        for entry in load.entries:
            memory = entry.row.memory
            if memory.weights_gib is not None:
                found.setdefault(
                    entry.candidate,
                    {
                        "ground": ground.title,
                        "candidate": entry.candidate,
                        "weights_gib": memory.weights_gib,
                        "kv_tokens": memory.kv_cache_tokens,
                        "start_s": entry.row.startup.start_s,
                    },
                )
    return list(found.values())


def limit_records(ground: Ground) -> list[Record]:
    """The share of the limit, one record a phase."""
    return [
        {
            "ground": ground.title,
            "scenario": load.name,
            "candidate": entry.candidate,
            "phase": phase,
            "share": share,
        }
        for load in ground.loads
        for entry in load.entries
        for phase, share in (
            ("prefill", entry.cell.prefill_share),
            ("decode", entry.cell.decode_share),
        )
        if share is not None
    ]


def profile_records(rows: list[Row]) -> list[Record]:
    """Seconds by kind of operator, one record a kind; prefill and decode steps apart where the
    trace tells them."""
    found = []
    for row, title in _profile_names(rows):
        for phase in phases(row.values):
            step = f", a {phase.name} step of {phase.window_s / phase.steps * MILLI:.3g} ms"
            # More than the window where kernels run side by side.
            whole = max(phase.window_s, sum(phase.kinds_s.values()))
            found += [
                {
                    "model": row.model,
                    "candidate": row.checkpoint,
                    "scenario": row.measure,
                    "engine": row.environment.engine or "",
                    "phase": phase.name,
                    "profile": title + (step if phase.name else ""),
                    "kind": kind,
                    "ms": seconds / phase.steps * MILLI,
                    "share": seconds / whole,
                }
                for kind, seconds in phase.kinds_s.items()
            ]
    return found


def _profile_names(rows: list[Row]) -> list[tuple[ProfileRow, str]]:
    """Each profile with its checkpoint and whatever else sets it apart from the others."""
    profiles = [row for row in rows if isinstance(row, ProfileRow)]
    own = differing([_profile_facts(row) for row in profiles])
    return [
        (row, ", ".join([row.checkpoint, *facts.values()]))
        for row, facts in zip(profiles, own, strict=True)
    ]


def _profile_facts(row: Row) -> dict[str, str]:
    """What a profile depends on beside its checkpoint, in words."""
    options = row.environment.facts("engine_options")
    return {
        "model": row.model,
        "measure": row.measure,
        **row.environment.facts("engine", "device"),
        **{name: f"{name}={value}" for name, value in options.items()},
    }


def operator_records(rows: list[Row]) -> list[Record]:
    """The operators that take the most time of each profile."""
    return [
        {
            "model": row.model,
            "candidate": row.checkpoint,
            "scenario": row.measure,
            "engine": row.environment.engine or "",
            "profile": title,
            "name": readable(operator.name)[:NAME_LENGTH],
            "self_cpu_ms": operator.self_cpu_s * MILLI,
            "self_cuda_ms": operator.self_cuda_s * MILLI,
            "calls": operator.calls,
        }
        for row, title in _profile_names(rows)
        for operator in row.values.operators[:OPERATORS]
    ]


def sensitivity_records(rows: list[Row]) -> list[Record]:
    """Divergence of each block, in the model's order."""
    return [
        {
            "model": row.model,
            "candidate": row.checkpoint,
            "panel": f"{row.model}, {row.checkpoint}",
            "block": block.block,
            "divergence": block.divergence,
            "mib": block.bytes / 2**20,
            "advice": "worth leaving out"
            if block.block in row.values.worth_ignoring
            else "quantize",
        }
        for row in rows
        if isinstance(row, SensitivityRow)
        for block in row.values.blocks
    ]
