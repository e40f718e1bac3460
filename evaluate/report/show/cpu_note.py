"""Explains why an INT8 checkpoint is slower than the original on a CPU."""

import statistics
from collections import defaultdict
from pathlib import Path

from conf.hardware import CPU, cpu_has_int8, cpu_name
from conf.models import ORIGINAL
from conf.schema.commands import EvaluateConfig
from conf.terminal import say
from evaluate.results.results_file import read
from evaluate.results.rows import Row, SpeedRow, current

SLOWER = 1.1  # times the original's latency, in each run; less may be noise
# results/h200-qwen3-8b-kernels: w8a8_smooth_gptq in README's table, slowest and fastest workload.
ON_H200 = ("1.40", "1.50")


def explain_slower_on_cpu(config: EvaluateConfig) -> None:
    """Prints the notes for this model's results, if any."""
    rows, _ = read(Path(config.results).expanduser())
    for line in notes([row for row in current(rows) if row.model == config.model.name]):
        say(line)


def notes(rows: list[Row]) -> list[str]:
    """A line for each INT8 checkpoint that a CPU runs slower than the original, and a reference to
    GPU results."""
    slower = {name: times for name, (times, least) in _times_slower(rows).items() if least > SLOWER}
    if not slower:
        return []
    reason = "" if cpu_has_int8() else f", because this CPU ({cpu_name()}) has no INT8 matrix units"
    low, high = ON_H200
    return [
        *[
            f"{name}: {times:.1f} times slower than the original here{reason}"
            for name, times in slower.items()
        ],
        "A CPU's speed does not predict a GPU's: INT8 (w8a8_smooth_gptq) ran qwen3-8b "
        f"{low} to {high} times as fast as bf16 on an NVIDIA H200; see docs/results.md",
    ]


def _times_slower(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Each INT8 checkpoint's latency over the original's, and that of its fastest run over the
    original's slowest: the medians over scenarios."""
    latencies: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if not isinstance(row, SpeedRow) or row.environment.device != CPU:
            continue
        if row.values.latency_s is not None and not row.invalid:
            latencies[row.checkpoint, row.measure].append(row.values.latency_s)
    int8 = dict.fromkeys(row.checkpoint for row in rows if _runs_int8(row))
    found = {}
    for name in int8:
        pairs = [
            (values, latencies[ORIGINAL, measure])
            for (checkpoint, measure), values in latencies.items()
            if checkpoint == name and (ORIGINAL, measure) in latencies
        ]
        times = [statistics.median(own) / statistics.median(original) for own, original in pairs]
        least = [min(own) / max(original) for own, original in pairs]
        if pairs:
            found[name] = (statistics.median(times), statistics.median(least))
    return found


def _runs_int8(row: Row) -> bool:
    return any("int8" in f"{scheme} {kernel}".lower() for scheme, kernel in row.kernels.items())
