"""Runs both ways of quantizing and measures them."""

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from llmcompressor import oneshot
from rich.console import Console
from torch.utils.data import DataLoader

from conf.schema.commands import QuantizeConfig
from conf.terminal import library_output_to, plain_console, say
from quantize.benchmark.options import BenchmarkConfig
from quantize.calibrate.batches import batches
from quantize.calibrate.compress import Batches, compress
from quantize.calibrate.resume import WorkFolder
from quantize.checkpoint.reload import weights_held
from quantize.models.fetch import fetch
from quantize.models.load import load
from quantize.modifiers import modifiers

HELD_OUT = 4  # sequences that the errors are measured on
WARM_UP_BATCHES = 2
Method = Callable[[Any, Any, QuantizeConfig, Batches, Path], None]
"""Quantizes a model in place; may save layers in a folder."""


@dataclass
class Measured:
    """The cost of one run, and the model that it made."""

    seconds: float
    peak_gpu_gib: float
    model: Any


@dataclass
class QuantizationCost:
    """What one way of quantizing costs, from runs at several depths."""

    by_depth: dict[int, Measured]

    @property
    def seconds_per_layer(self) -> float:
        first, last = min(self.by_depth), max(self.by_depth)
        seconds = self.by_depth[last].seconds - self.by_depth[first].seconds
        return seconds / (last - first)

    @property
    def depth(self) -> int:
        return max(self.by_depth)

    @property
    def deepest(self) -> Measured:
        return self.by_depth[self.depth]

    def figures(self) -> dict[str, object]:
        return {
            "seconds": {depth: round(cost.seconds, 2) for depth, cost in self.by_depth.items()},
            "seconds_per_layer": round(self.seconds_per_layer, 3),
            "peak_gpu_gib": round(self.deepest.peak_gpu_gib, 2),
            "peak_gpu_gib_by_depth": {
                depth: round(cost.peak_gpu_gib, 2) for depth, cost in self.by_depth.items()
            },
        }


def benchmark(config: BenchmarkConfig) -> None:
    """Prints the figures of both, and their ratio, as JSON."""
    assert config.model.architecture is not None
    layers = min(config.depths[-1], config.model.architecture.num_hidden_layers)
    if config.model.weights == "random":
        config.model.architecture.num_hidden_layers = layers
    folder = fetch(config.model)
    samples, held_out = random_samples(config)
    with (
        tempfile.TemporaryDirectory() as scratch,
        library_output_to(Path(scratch) / "log") as console,
    ):
        calibration = batches(samples, config.batch_size)
        ours = _cost(folder, config, config.depths, calibration, _with_quantline, console)
        costs = [ours]
        if config.reference:
            one_by_one = batches(samples, 1)
            depths = config.reference_depths or config.depths
            costs.append(_cost(folder, config, depths, one_by_one, _with_llmcompressor, console))
        original, _ = _first_layers(folder, config, min(cost.depth for cost in costs))
        quantized = [cost.deepest.model for cost in costs]
        errors = layer_errors(original, quantized, held_out)
    figures: dict[str, object] = {
        "recipe": config.recipe.name,
        "tokens": sum(map(len, samples)),
        "quantline": ours.figures(),
        "output_error_by_layer": [[float(f"{value:.4g}") for value in pair] for pair in errors],
    }
    if config.reference:
        speedup = costs[1].seconds_per_layer / ours.seconds_per_layer
        worst = max(_ratio(*pair) for pair in errors)
        figures |= {
            "llmcompressor": costs[1].figures(),
            "speedup": round(speedup, 2),
            "worst_error_ratio": round(worst, 4),
        }
        say(f"{speedup:.1f} times as fast, worst layer error {worst:.3f} times llm-compressor's")
    print(json.dumps(figures))


def _ratio(error: float, reference: float) -> float:
    if not reference:
        return math.inf if error else 1.0
    return error / reference


def random_samples(config: QuantizeConfig) -> tuple[list[list[int]], list[list[int]]]:
    """Sequences to calibrate on, and others to measure the errors on."""
    assert config.model.architecture is not None
    generator = torch.Generator().manual_seed(config.calibration.seed)
    shape = (config.calibration.samples + HELD_OUT, config.calibration.length)
    tokens = torch.randint(config.model.architecture.vocab_size, shape, generator=generator)
    samples: list[list[int]] = tokens.tolist()
    return samples[:-HELD_OUT], samples[-HELD_OUT:]


def _first_layers(folder: Path, config: QuantizeConfig, depth: int) -> tuple[Any, Any]:
    """The model with its first layers only, and its tokenizer."""
    model, tokenizer = load(folder, config.model)
    model.model.layers = model.model.layers[:depth]
    model.config.num_hidden_layers = len(model.model.layers)
    if getattr(model.config, "layer_types", None) is not None:
        model.config.layer_types = model.config.layer_types[:depth]
    return model, tokenizer


def _cost(
    folder: Path,
    config: BenchmarkConfig,
    depths: list[int],
    calibration: Batches,
    method: Method,
    console: Console,
) -> QuantizationCost:
    by_depth = {}
    model, tokenizer = _first_layers(folder, config, 1)
    _measure(model, tokenizer, config, calibration[:WARM_UP_BATCHES], method)
    del model
    for depth in depths:
        model, tokenizer = _first_layers(folder, config, depth)
        measured = _measure(model, tokenizer, config, calibration, method)
        console.print(
            f"{method.__name__}: {depth} layers, {measured.seconds:.1f} s", soft_wrap=True
        )
        if depth != depths[-1]:
            measured.model = None
        by_depth[depth] = measured
    return QuantizationCost(by_depth)


def _measure(
    model: Any, tokenizer: Any, config: QuantizeConfig, calibration: Batches, method: Method
) -> Measured:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        method(model, tokenizer, config, calibration, Path(scratch))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    return Measured(seconds, peak, model)


def _with_llmcompressor(
    model: Any, tokenizer: Any, config: QuantizeConfig, calibration: Batches, folder: Path
) -> None:
    """Quantizes with llm-compressor's own loop, one sequence at a time."""
    loader = DataLoader(calibration, batch_size=None)
    oneshot(model=model, tokenizer=tokenizer, recipe=modifiers(config.recipe), dataset=loader)


def _with_quantline(
    model: Any, tokenizer: Any, config: QuantizeConfig, calibration: Batches, folder: Path
) -> None:
    steps = modifiers(config.recipe)
    work = WorkFolder(folder / "work", {})
    compress(model, tokenizer, config.recipe, steps, calibration, work, plain_console(quiet=True))


def layer_errors(
    original: Any, quantized_models: list[Any], samples: list[list[int]]
) -> list[tuple[float, ...]]:
    """For each layer and model, the relative squared error of what the layer adds to its input."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    errors = []
    with torch.no_grad():
        hidden = original.model.embed_tokens(torch.tensor(samples))
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        for number in range(original.config.num_hidden_layers):
            stream = hidden.to(device)
            rotary = original.model.rotary_emb.to(device)(stream, positions.to(device))
            outputs = [
                _run_layer(model.model.layers[number], stream, rotary, device)
                for model in (original, *quantized_models)
            ]
            contribution = outputs[0] - stream  # what the layer adds to its input
            errors.append(
                tuple(
                    float(
                        (output - outputs[0]).float().square().sum()
                        / contribution.float().square().sum()
                    )
                    for output in outputs[1:]
                )
            )
            hidden = outputs[0].cpu()
    return errors


def _run_layer(layer: Any, hidden: torch.Tensor, rotary: Any, device: str) -> torch.Tensor:
    with weights_held(layer):
        output = layer.to(device)(hidden, position_embeddings=rotary)
    return output[0] if isinstance(output, tuple) else output
