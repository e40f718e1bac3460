"""The story of a run: fetch, read text, calibrate, let it speak, publish."""

import importlib.metadata
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.errors import gate_failed
from conf.hardware import resolve_gpu
from conf.schema import GpuConfig, QuantizeConfig
from conf.terminal import chatter_to, say
from quantize import save
from quantize.calibration import batches, calibration_samples
from quantize.compress import Batches, compress
from quantize.fetch import fetch
from quantize.load import answer, load
from quantize.manifest import Manifest

PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch")


def quantize(config: QuantizeConfig) -> Path:
    """Makes the checkpoint that the config asks for and returns its folder."""
    name, recipe = str(config.model.name), config.recipe
    folder = save.destination(config.output_dir, name, recipe.name, config.replace)
    seconds: dict[str, float] = {}

    with timed(seconds, "fetch"):
        source = fetch(config.model)
    with timed(seconds, "load"):
        model, tokenizer = load(source, config.model)
    text, data = _text(config, tokenizer)

    log_file = folder.with_name(f"{folder.name}.log")
    log_file.parent.mkdir(parents=True, exist_ok=True)
    say(f"{name}: {recipe.name}, {' then '.join(recipe.steps)} (log in {log_file})")
    with chatter_to(log_file) as console:
        with timed(seconds, "compress"):
            compress(model, tokenizer, recipe, data, console)
        modules = save.quantized_modules(model)
        if not modules:
            raise gate_failed(f"recipe={recipe.name}: no module was quantized, none is published")
        with timed(seconds, "answer"):
            reply = answer(model, tokenizer, config.prompt)
        with save.published_whole(folder) as unfinished:
            with timed(seconds, "save"):
                save.save(model, tokenizer, unfinished, save.source_dtype(source))
            manifest = Manifest(
                model=name,
                recipe=recipe.name,
                model_config=asdict(config.model),
                recipe_config=asdict(recipe),
                text=text,
                quantized_modules=modules,
                weight_bytes=weight_bytes(unfinished),
                seconds={part: round(value, 2) for part, value in seconds.items()},
                versions={package: importlib.metadata.version(package) for package in PACKAGES},
                device=str(resolve_gpu(GpuConfig()).name),
                canary={"prompt": config.prompt, "answer": reply},
            )
            manifest.write(unfinished)
    _summary(folder, manifest, weight_bytes(source))
    return folder


def _text(config: QuantizeConfig, tokenizer: Any) -> tuple[dict[str, Any] | None, Batches]:
    """The calibration batches and their record; none for a recipe that rounds without data."""
    if not config.recipe.needs_text:
        return None, []
    samples, counts = calibration_samples(config.calibration, tokenizer)
    say(f"text: {counts.samples} samples, {counts.tokens:,} tokens, {counts.cut_tokens:,} cut off")
    record = {"source": asdict(config.calibration), "counts": asdict(counts)}
    return record, batches(samples, config.batch_size)


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - start


def _summary(folder: Path, manifest: Manifest, original_bytes: int) -> None:
    share = manifest.weight_bytes / original_bytes
    say(
        f"{manifest.model}: {manifest.quantized_modules} modules quantized, "
        f"{manifest.weight_bytes / 1e6:.1f} MB ({share:.0%} of the original), "
        f"{sum(manifest.seconds.values()):.0f} s"
    )
    say(f"asked: {manifest.canary['prompt']}")
    say(f"it says: {manifest.canary['answer']}")
    print(folder)
