"""The story of a run: check, fetch, read text, calibrate, save, prove, publish."""

import importlib.metadata
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conf.errors import gate_failed
from conf.hardware import resolve_gpu
from conf.load_schema import GpuConfig
from conf.models import files_sha256
from conf.schema import QuantizeConfig
from conf.terminal import chatter_to, say
from quantize import save
from quantize.calibration import TextCounts, batches, calibration_samples
from quantize.card import model_card
from quantize.compress import Batches, Outcome, compress
from quantize.fetch import fetch, without_weights
from quantize.load import answer, check_finite, load
from quantize.manifest import Manifest, hashes
from quantize.preflight import check_machine, preflight
from quantize.publish import destination, may_publish, published_whole
from quantize.recipe import modifiers
from quantize.recipe_file import from_file, runnable
from quantize.reload import closeness, probe_logits
from quantize.resume import WorkFolder
from quantize.verify import Proof, verify

PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch")
# The reloaded checkpoint against the model in memory, mean divergence of the next token: rounding
# to the original's number type on the way to disk gives about 1e-6 in float32 and up to 0.02 on a
# GPU in bf16, where one bit flips the rounding of an activation; a wrong tensor gives far more.
CLOSE_ENOUGH = 0.1


@dataclass
class Text:
    """The calibration text as batches, and its record."""

    batches: Batches
    record: dict[str, Any] | None
    sha256: str = ""


def quantize(config: QuantizeConfig) -> Path | None:
    """Makes the checkpoint that the config asks for and returns its folder."""
    name = str(config.model.name)
    may_publish(config)
    folder = destination(config)
    steps = None
    if config.recipe.file:
        described, steps = from_file(config.recipe)
        config = replace(config, recipe=described)
    with without_weights(config.model) as architecture:
        checked = preflight(architecture, config, steps)
    config = replace(config, recipe=checked.recipe)
    recipe = config.recipe
    steps = runnable(steps) if steps else modifiers(recipe)
    for line in checked.lines():
        say(f"{name}: {line}")
    if config.preflight == "only":
        return None
    seconds: dict[str, float] = {}
    with timed(seconds, "fetch"):
        source = fetch(config.model)
    check_machine(checked, config)  # what was fetched may lie on the same disk
    source_hash = weights_sha256(source)
    with timed(seconds, "load"):
        model, tokenizer = load(source, config.model)
        check_finite(model)
    stored_as = save.source_dtype(source)
    text = _text(config, tokenizer, steps)
    work = WorkFolder(folder.with_name(f".{folder.name}.work"), _key(config, source_hash, text))
    log_file = folder.with_name(f"{folder.name}.log")
    say(f"{name}: {recipe.name} (log in {log_file})")
    with chatter_to(log_file) as console:
        with timed(seconds, "compress"):
            outcome = compress(
                model, tokenizer, recipe, steps, text.batches, work, console, stored_as
            )
        if recipe.rounds and not save.quantized_modules(model):
            raise gate_failed(f"recipe={recipe.name}: no module was quantized, none is published")
        with published_whole(folder) as unfinished:
            with timed(seconds, "save"):
                save.on_device(model)
                before = probe_logits(model)
                save.save(model, tokenizer, unfinished, stored_as)
                del model
            with timed(seconds, "prove"):
                trusted = config.model.trust_remote_code
                proof = verify(unfinished, recipe.is_sparse, source, asdict(recipe), trusted)
                reloaded, _ = load(unfinished, config.model)
                save.on_device(reloaded)
                divergence = closeness(before, probe_logits(reloaded))
                reply = answer(reloaded, tokenizer, config.prompt)
            _gate(recipe.name, proof, divergence)
            manifest = _manifest(config, source_hash, text, outcome, seconds, proof)
            manifest.proof["reload_divergence"] = divergence
            manifest.canary = {"prompt": config.prompt, "answer": reply}
            manifest.files = hashes(unfinished)
            manifest.write(unfinished)
            (unfinished / "README.md").write_text(model_card(manifest))
    work.remove()
    _summary(folder, manifest, file_bytes(source))
    return folder


def _text(config: QuantizeConfig, tokenizer: Any, steps: list[Any]) -> Text:
    """The calibration batches and their record; none for a recipe that rounds without data."""
    if not (config.recipe.needs_text or any(step.requires_calibration_data for step in steps)):
        return Text([], None)
    samples, counts = calibration_samples(config.calibration, tokenizer)
    say(f"text: {counts.samples} samples, {counts.tokens:,} tokens, {counts.cut_tokens:,} cut off")
    return Text(batches(samples, config.batch_size), _record(config, counts), counts.sha256)


def _record(config: QuantizeConfig, counts: TextCounts) -> dict[str, Any]:
    return {"source": asdict(config.calibration), "counts": asdict(counts)}


def _key(config: QuantizeConfig, source_hash: str, text: Text) -> dict[str, Any]:
    """What has to be the same for a finished layer to be taken over from an earlier try."""
    recipe = asdict(config.recipe)
    for words in ("description", "when", "hardware"):
        del recipe[words]
    del recipe["gptq"]["max_fallback"]  # a gate at the end, which changes no layer
    if config.recipe.file:
        recipe["content"] = Path(config.recipe.file).expanduser().read_text()
    return {
        "model": source_hash,
        "recipe": recipe,
        "text": text.sha256,
        "batch_size": config.batch_size,
        "versions": versions(),
        "device": device_name(),
    }


def _gate(recipe: str, proof: Proof, divergence: float) -> None:
    if proof.faults:
        more = f" and {len(proof.faults) - 1} more" if len(proof.faults) > 1 else ""
        raise gate_failed(f"recipe={recipe}: not published: {proof.faults[0]}{more}")
    if not divergence < CLOSE_ENOUGH:
        raise gate_failed(
            f"recipe={recipe}: not published: the file answers differently from the model it was "
            f"made from (divergence {divergence:.3g}, allowed {CLOSE_ENOUGH})"
        )


def _manifest(
    config: QuantizeConfig,
    source_hash: str,
    text: Text,
    outcome: Outcome,
    seconds: dict[str, float],
    proof: Proof,
) -> Manifest:
    return Manifest(
        model=str(config.model.name),
        recipe=config.recipe.name,
        model_config=asdict(config.model),
        model_sha256=source_hash,
        recipe_config=asdict(config.recipe),
        text=text.record,
        errors=outcome.errors,
        fallbacks=outcome.fallbacks,
        layer_seconds=rounded(outcome.layer_seconds),
        resumed_layers=outcome.resumed_layers,
        seconds={part: round(value, 2) for part, value in seconds.items()},
        peak_memory_gib=peak_memory(),
        versions=versions(),
        device=device_name(),
        proof=asdict(proof),
        canary={},
    )


def rounded(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {step: [round(value, 3) for value in values] for step, values in seconds.items()}


def versions() -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in PACKAGES}


def device_name() -> str:
    return str(resolve_gpu(GpuConfig()).name)


def peak_memory() -> dict[str, float]:
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"host": round(host / 2**30, 2), "gpu": round(gpu / 2**30, 2)}


def weights_sha256(folder: Path) -> str:
    """One hash over all weight files, in the order of their names."""
    return files_sha256(sorted(folder.glob("*.safetensors")))


def file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - start


def _summary(folder: Path, manifest: Manifest, original_bytes: int) -> None:
    share = file_bytes(folder) / original_bytes
    say(
        f"{manifest.model}: {file_bytes(folder) / 1e6:.1f} MB ({share:.0%} of the original), "
        f"{sum(manifest.seconds.values()):.0f} s"
    )
    for kind, count in manifest.proof["formats"].items():
        say(f"proven: {count} layers {kind}")
    say(f"proven: divergence after reloading {manifest.proof['reload_divergence']:.1e}")
    if manifest.fallbacks:
        say(f"GPTQ could only round {len(manifest.fallbacks)} modules: {manifest.fallbacks[0]} ...")
    say(f"asked: {manifest.canary['prompt']}")
    say(f"it says: {manifest.canary['answer']}")
    print(folder)
