"""`python -m quantize.benchmark recipe=NAME model=NAME`: Quantline against llm-compressor's loop.

Both methods run one after the other in one process, on the same model, recipe and tokens. Measured
are seconds per layer, peak GPU memory, and the error of each quantized layer's output. Tokens are
random: the time does not depend on them, and no text suits a model with random weights.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from llmcompressor import oneshot
from rich.console import Console
from torch.utils.data import DataLoader

from conf.app import run
from conf.schema.commands import QuantizeConfig
from conf.terminal import library_output_to, say
from quantize.calibrate.batches import batches
from quantize.calibrate.compress import Batches, compress
from quantize.checkpoint.reload import weights_held
from quantize.command import COMMAND as QUANTIZE
from quantize.models.fetch import fetch
from quantize.models.load import load
from quantize.modifiers import modifiers

COMMAND = replace(
    QUANTIZE,
    module="quantize.benchmark",
    purpose="Compares the time, memory and layer errors of quantizing here and with "
    "llm-compressor's own\nloop, on random tokens. Prints JSON.",
    examples=(
        "python -m quantize.benchmark model=tiny calibration.samples=8 calibration.length=128",
        "python -m quantize.benchmark recipe=w8a8_smooth_gptq model=qwen3-8b model.weights=random",
        "python -m quantize.benchmark recipe=w4a16_awq model=qwen3-8b batch_size=8",
    ),
)
Method = Callable[[Any, Any, QuantizeConfig, Batches, Console], None]
"""Quantizes a model with its tokenizer in place."""
HELD_OUT = 4  # sequences that the errors are measured on


@dataclass
class QuantizationCost:
    """What quantizing a model cost, and the quantized model."""

    seconds: float
    seconds_per_layer: float
    peak_gpu_gib: float
    model: Any


def benchmark(config: QuantizeConfig) -> None:
    """Prints the figures of both methods and their ratio as JSON."""
    folder = fetch(config.model)
    samples = random_samples(config)
    with (
        tempfile.TemporaryDirectory() as scratch,
        library_output_to(Path(scratch) / "log") as console,
    ):
        library = _measure(folder, config, batches(samples, 1), _with_llmcompressor, console)
        quantline = _measure(
            folder, config, batches(samples, config.batch_size), _with_quantline, console
        )
        original, _ = load(folder, config.model)
        errors = layer_errors(original, [library.model, quantline.model], samples[:HELD_OUT])
    worst = max(
        our_error / library_error if library_error else (math.inf if our_error else 1.0)
        for library_error, our_error in errors
    )
    figures = {
        "recipe": config.recipe.name,
        "tokens": sum(map(len, samples)),
        "layers": len(errors),
        "llmcompressor": _figures(library),
        "quantline": _figures(quantline),
        "speedup": round(library.seconds / quantline.seconds, 2),
        "output_error_by_layer": [[float(f"{value:.4g}") for value in pair] for pair in errors],
        "worst_error_ratio": round(worst, 4),
    }
    say(f"speed-up over llm-compressor {figures['speedup']}, worst layer error ratio {worst:.3f}")
    print(json.dumps(figures))


def random_samples(config: QuantizeConfig) -> list[list[int]]:
    assert config.model.architecture is not None
    generator = torch.Generator().manual_seed(config.calibration.seed)
    shape = (config.calibration.samples, config.calibration.length)
    tokens = torch.randint(config.model.architecture.vocab_size, shape, generator=generator)
    samples: list[list[int]] = tokens.tolist()
    return samples


def _measure(
    folder: Path, config: QuantizeConfig, calibration: Batches, method: Method, console: Console
) -> QuantizationCost:
    model, tokenizer = load(folder, config.model)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    method(model, tokenizer, config, calibration, console)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    layers = model.config.num_hidden_layers
    console.print(
        f"{method.__name__}: {seconds:.1f} s, {seconds / layers:.2f} s a layer", soft_wrap=True
    )
    return QuantizationCost(seconds, seconds / layers, peak, model)


def _with_llmcompressor(
    model: Any, tokenizer: Any, config: QuantizeConfig, calibration: Batches, console: Console
) -> None:
    """Quantizes with llm-compressor's own loop, one sequence at a time."""
    loader = DataLoader(calibration, batch_size=None)
    oneshot(model=model, tokenizer=tokenizer, recipe=modifiers(config.recipe), dataset=loader)


def _with_quantline(
    model: Any, tokenizer: Any, config: QuantizeConfig, calibration: Batches, console: Console
) -> None:
    steps = modifiers(config.recipe)
    compress(model, tokenizer, config.recipe, steps, calibration, None, console)


def _figures(cost: QuantizationCost) -> dict[str, float]:
    return {
        "seconds": round(cost.seconds, 2),
        "seconds_per_layer": round(cost.seconds_per_layer, 3),
        "peak_gpu_gib": round(cost.peak_gpu_gib, 2),
    }


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


if __name__ == "__main__":
    run(COMMAND, benchmark)
