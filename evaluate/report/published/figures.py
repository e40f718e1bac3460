"""Published figures to compare ours with: runs, engines, operators, contexts."""

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from conf.models import ORIGINAL
from evaluate.results.significance import Ratio, compare, sample

FOLDER = Path(__file__).parent / "data"
NOT_STATED = "not stated"
Figure = TypeVar("Figure")


@dataclass(frozen=True)
class Source:
    """A source of figures. `not stated` marks what the source does not state."""

    name: str
    title: str
    model: str
    hardware: str
    """The GPU."""
    versions: dict[str, str]
    """By engine."""
    settings: dict[str, str]
    """Settings that a comparison with these figures must take into account."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a recipe in a scenario, both under our names."""

    source: str
    recipe: str
    scenario: str
    run: int
    """Counted from 1 within a recipe and scenario."""
    latency_s: float
    output_tokens_per_s: float
    overall_tokens_per_s: float


@dataclass(frozen=True)
class SweepLoad:
    """The load of a scenario of the sweep."""

    source: str
    scenario: str
    batch: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class EngineFigure:
    """One checkpoint in one engine."""

    source: str
    model: str
    engine: str
    quantization: str
    kernel: str
    ttft_ms: float
    tpot_ms: float
    device: str
    versions: str


@dataclass(frozen=True)
class OperatorFigure:
    """One line of a profile."""

    source: str
    name: str
    self_cpu_ms: float
    self_cuda_ms: float
    calls: int


@dataclass(frozen=True)
class ContextFigure:
    """Speed and memory of a model after an input of some length."""

    source: str
    model: str
    parameters: str
    """As in the model's name: 7B, 57B-A14B."""
    engine: str
    input_tokens: int
    quantization: str
    """bf16, gptq_int8, gptq_int4 or awq."""
    gpus: int
    tokens_per_s: float
    memory_gb: float | None
    """None if it is not reported."""
    note: str
    """Engine options that differ from the source's settings."""


@dataclass(frozen=True)
class ThroughputFigure:
    """Throughput with many prompts at once."""

    source: str
    model: str
    engine: str
    quantization: str
    gpus: int
    prompts: int
    requests_per_s: float
    tokens_per_s: float
    """Input and output tokens together."""


@dataclass(frozen=True)
class KernelFigure:
    """One vector-quantized product against torch's."""

    source: str
    tokens: int
    in_features: int
    out_features: int
    main_centroids: int
    """0 where the source does not state it, as the residual ones."""
    residual_centroids: int
    vptq_ms: float
    torch_ms: float

    @property
    def ratio(self) -> float:
        """Below 1 is faster than torch."""
        return self.vptq_ms / self.torch_ms


def sources() -> dict[str, Source]:
    """All sources, by name."""
    content = yaml.safe_load((FOLDER / "sources.yaml").read_text(encoding="utf-8"))
    return {name: Source(name, **facts) for name, facts in content.items()}


def sweep_runs() -> list[SweepRun]:
    return _read("sweep.csv", SweepRun)


def sweep_loads() -> dict[str, SweepLoad]:
    """The loads of the sweep, by scenario."""
    return {load.scenario: load for load in _read("sweep_loads.csv", SweepLoad)}


def engine_figures() -> list[EngineFigure]:
    return _read("engines.csv", EngineFigure)


def operator_figures() -> list[OperatorFigure]:
    return _read("profile.csv", OperatorFigure)


def context_figures() -> list[ContextFigure]:
    return _read("context.csv", ContextFigure)


def throughput_figures() -> list[ThroughputFigure]:
    return _read("throughput.csv", ThroughputFigure)


def kernel_figures() -> list[KernelFigure]:
    return _read("kernels.csv", KernelFigure)


def sweep_speedups() -> dict[tuple[str, str], Ratio]:
    """The speed-up of each recipe over the original in each scenario, by latency.

    The published latencies are rounded to 10 ms, up to 2 %. Three runs can be equal, and their
    interval would have no width. Overall tokens/s is a scenario's tokens over the latency and has
    all digits: its inverse ratio is the ratio of the latencies.
    """
    overall: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in sweep_runs():
        overall[run.recipe, run.scenario].append(run.overall_tokens_per_s)
    ratios = {
        (recipe, scenario): compare(sample(overall[ORIGINAL, scenario]), sample(speeds))
        for (recipe, scenario), speeds in overall.items()
        if recipe != ORIGINAL
    }
    return {key: ratio for key, ratio in ratios.items() if ratio is not None}


def _read(name: str, kind: type[Figure]) -> list[Figure]:
    """The lines of a table as records. The columns are the record's fields, in the same order."""
    types = get_type_hints(kind)
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == list(types), f"{name}: {header}"
    return [
        kind(*(_value(text, types[column]) for column, text in zip(header, line, strict=True)))
        for line in lines
    ]


def _value(text: str, kind: Any) -> Any:
    if kind == float | None:
        return float(text) if text else None
    return kind(text)
