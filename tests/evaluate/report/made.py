"""Rows made up for the report's tests: latencies in, whole rows out."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluate.report.decide.comparison import ComparisonGroup, comparison_groups
from evaluate.report.decide.ranking import rank_all
from evaluate.results.row_types import Environment, Limit, Memory, WorkloadSettings
from evaluate.results.row_values import QuickAccuracy, SpeedValues
from evaluate.results.rows import QuickAccuracyRow, Row, SpeedRow, line_content

H200 = "NVIDIA H200"


@dataclass
class Cell:
    """One cell to make runs of."""

    checkpoint: str
    latencies: list[float]
    measure: str = "interactive"
    batch: int = 1
    inputs: int = 128
    outputs: int = 64
    device: str = H200
    engine: str = "vllm"
    versions: dict[str, str] = field(default_factory=lambda: {"vllm": "0.25.1", "torch": "2.11.0"})
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "qwen3-8b"
    weights: str = "trained"
    kernel: str = ""
    layers: list[dict[str, Any]] = field(default_factory=list)
    """What the layers ran, where our kernels were offered."""
    kernels_version: int | None = None
    card: str = ""
    format: str = ""
    """Cells of the same format are the same to the engine; its own, unless given."""

    def rows(self) -> list[SpeedRow]:
        return [self._row(number, latency) for number, latency in enumerate(self.latencies)]

    def _row(self, number: int, latency: float) -> SpeedRow:
        stated = asdict(self) | {"latencies": None}
        return SpeedRow(
            model=self.model,
            checkpoint=self.checkpoint,
            measure=self.measure,
            repeat=number,
            key=hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest(),
            values=SpeedValues(
                latency_s=latency,
                ttft_last_s=latency * 0.1,
                tpot_median_s=latency * 0.9 / max(1, self.outputs - 1),
                input_tokens=self.batch * self.inputs,
                output_tokens=self.batch * self.outputs,
                generated_tokens_per_s=self.batch * self.outputs / latency,
                decode_tokens_per_s=self.batch * self.outputs / latency / 0.9,
                overall_tokens_per_s=self.batch * (self.inputs + self.outputs) / latency,
                input_tokens_per_s=self.batch * self.inputs / latency / 0.1,
            ),
            settings=WorkloadSettings(
                batch=self.batch, input_tokens=self.inputs, output_tokens=self.outputs
            ),
            memory=Memory(weights_gib=15.0, kv_cache_tokens=1000.0, kv_token_bytes=2.0**20),
            layer_kernels=self.layers,
            kernels={"scheme": f"{self.kernel}LinearKernel"} if self.kernel else {},
            limit=Limit(prefill_share=0.4, decode_share=0.7),
            invalid=[],
            environment=Environment(
                device=self.device,
                engine=self.engine,
                engine_options=self.options,
                versions=self.versions,
                checkpoint_sha256=self.checkpoint,
                quantization_sha256=self.format or self.checkpoint,
                weights=self.weights,
                **({"card": self.card} if self.card else {}),
                **({"kernels_version": self.kernels_version} if self.kernels_version else {}),
            ),
            time=f"2026-01-01T00:00:{number:02}+00:00",
        )


def runs(*cells: Cell) -> list[SpeedRow]:
    return [row for cell in cells for row in cell.rows()]


def accuracy_row(checkpoint: str, recovery: float, verdict: str) -> QuickAccuracyRow:
    return QuickAccuracyRow(
        model="qwen3-8b",
        checkpoint=checkpoint,
        measure="quick",
        repeat=0,
        key=f"accuracy {checkpoint}",
        values=QuickAccuracy(
            perplexity=10.0,
            recovery=recovery,
            recovery_low=recovery - 0.001,
            recovery_high=recovery + 0.001,
            verdict=verdict,
        ),
        environment=Environment(engine="vllm", checkpoint_sha256=checkpoint),
        time="2026-01-01T00:00:00+00:00",
    )


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(line_content(row)) + "\n" for row in rows))
    return path


def ranked(rows: Sequence[Row], max_spread: float = 0.1) -> list[ComparisonGroup]:
    """The comparison groups of rows, with ratios and ranks."""
    found = comparison_groups(rows)
    rank_all(found, max_spread)
    return found
