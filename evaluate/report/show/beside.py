"""Our figures beside published ones, and engines beside each other."""

from evaluate.report.decide.comparable import Ground
from evaluate.report.published.figures import (
    context_figures,
    engine_figures,
    operator_figures,
    sweep_speedups,
)
from evaluate.report.show.records import Record, milli

OURS, PUBLISHED = "here", "published"


def sweep_records(ground: Ground) -> list[Record]:
    """Speed-up beside speed-up, where recipe and scenario are the same: GPUs differ, and what a
    recipe gains over its own original can still be compared."""
    published = sweep_speedups()
    found = []
    for load in ground.loads:
        for entry in load.entries:
            theirs = published.get((entry.candidate, load.name))
            if theirs is None or entry.ratio is None:
                continue
            for source, ratio in ((OURS, entry.ratio), (PUBLISHED, theirs)):
                found.append(
                    {
                        "ground": ground.title,
                        "scenario": load.name,
                        "candidate": entry.candidate,
                        "source": source,
                        "speedup": ratio.ratio,
                        "speedup_low": ratio.low,
                        "speedup_high": ratio.high,
                        "differs": ratio.differs,
                    }
                )
    return found


def sweep_pairs(records: list[Record]) -> list[Record]:
    """The same, one record for ours and theirs together."""
    pairs: dict[tuple[str, str, str], Record] = {}
    for record in records:
        place = (record["ground"], record["scenario"], record["candidate"])
        pair = pairs.setdefault(
            place, {name: record[name] for name in ("ground", "scenario", "candidate")}
        )
        for part in ("", "_low", "_high"):
            pair[record["source"] + part] = record[f"speedup{part}"]
    return list(pairs.values())


def engine_records(found: list[Ground]) -> list[Record]:
    """One checkpoint under one load in several engines on the same device."""
    records: dict[tuple[str, ...], list[Record]] = {}
    for ground in found:
        for load in ground.loads:
            for entry in load.entries:
                if not entry.cell.valid:
                    continue
                lengths = entry.cell.settings_name
                place = (ground.model, ground.device, load.measure, lengths, entry.checkpoint)
                records.setdefault(place, []).append(
                    {
                        "model": ground.model,
                        "gpu": ground.device,
                        "scenario": load.name,
                        "candidate": entry.candidate,
                        "engine": ground.engine_title,
                        "ttft_ms": milli(entry.median("ttft_last_s")),
                        "tpot_ms": milli(entry.median("tpot_median_s")),
                        "latency_s": entry.median("latency_s"),
                        "output_tok_s": entry.median("generated_tokens_per_s"),
                        "requests_s": entry.median("requests_per_s"),
                    }
                )
    several = [part for part in records.values() if len({r["engine"] for r in part}) > 1]
    return [record for part in several for record in part]


def published_engines() -> list[Record]:
    return [
        {
            "engine": f"{figure.engine} ({figure.kernel} kernel)",
            "model": figure.model,
            "device": figure.device,
            "versions": figure.versions,
            "ttft_ms": figure.ttft_ms,
            "tpot_ms": figure.tpot_ms,
        }
        for figure in engine_figures()
    ]


def published_operators() -> list[Record]:
    return [
        {
            "profile": "published",
            "name": figure.name,
            "self_cpu_ms": figure.self_cpu_ms,
            "self_cuda_ms": figure.self_cuda_ms,
            "calls": figure.calls,
        }
        for figure in operator_figures()
    ]


def published_contexts(parameters: str = "7B") -> list[Record]:
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
            {
                "model": figure.model,
                "engine": figure.engine,
                "quantization": figure.quantization,
                "input_tokens": figure.input_tokens,
                "tok_s": figure.tokens_per_s,
                "memory_gb": figure.memory_gb,
                "speedup": figure.tokens_per_s / base if base else None,
                "note": figure.note,
            }
        )
    return found
