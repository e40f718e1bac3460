"""A whole run: check, fetch, read text, calibrate, save, verify, publish."""

import importlib.metadata
import os
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conf.checkpoint_hash import checkpoint_hash
from conf.durations import duration
from conf.hardware import resolve_gpu
from conf.models import files_sha256, read_config
from conf.schema.commands import QuantizeConfig
from conf.schema.load import GpuConfig
from conf.schema.steps import known_steps
from conf.schema.text import CalibrationConfig
from conf.terminal import library_output_to, say
from conf.text import check_hub_set
from quantize.calibrate.batches import (
    TextCounts,
    batches,
    calibration_samples,
    check_document_count,
)
from quantize.calibrate.compress import Batches, Outcome, compress
from quantize.calibrate.expert_tokens import token_summary
from quantize.calibrate.resume import CALIBRATION_VERSION, WORK_FORMAT, WorkFolder
from quantize.checkpoint import save, verified_marks
from quantize.checkpoint.card import model_card
from quantize.checkpoint.check_saved import Proven, gated, prove
from quantize.checkpoint.manifest import Manifest
from quantize.checkpoint.manifest_parts import CanaryClaim, ModelClaim, RecipeClaim, TextClaim
from quantize.checkpoint.publish import (
    check_destination,
    destination,
    is_to_push_only,
    locked,
    published_atomically,
)
from quantize.checkpoint.push import check_finished, push
from quantize.checkpoint.reload import probe
from quantize.mixed.run import chosen_recipe
from quantize.models.fetch import fetch, without_weights
from quantize.models.load import check_finite, check_usable, load
from quantize.models.release import release
from quantize.models.source import check_source
from quantize.modifiers import modifiers, runnable
from quantize.parallel.check import shard_count
from quantize.parallel.ranks import RANKS
from quantize.parallel.shards import sharded
from quantize.phases import Phases
from quantize.preflight import check_machine, preflight
from quantize.preflight_plan import Preflight
from quantize.recipe_file import from_file

PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch")


@dataclass
class TextRecord:
    """Where the calibration text came from, and what was used of it."""

    source: CalibrationConfig
    counts: TextCounts


@dataclass
class Text:
    """The calibration text as batches, and its record; None for a recipe that needs no text."""

    batches: Batches
    record: TextRecord | None

    @property
    def sha256(self) -> str:
        return self.record.counts.sha256 if self.record else ""


def quantize(config: QuantizeConfig) -> Path | None:
    """Makes the checkpoint of the config and returns its folder; None after preflight=only."""
    verified_marks.verifier()  # now: the sources may change while the model is calibrated
    name = str(config.model.name)
    check_destination(config)
    folder = destination(config)
    step_modifiers = None
    if config.recipe.file:
        recipe_of_file, step_modifiers = from_file(config.recipe)
        config = replace(config, recipe=recipe_of_file)
    with without_weights(config.model) as architecture:
        if config.model.path:
            check_source(architecture, config.model)
        plan = preflight(architecture, config, step_modifiers)
    config = replace(config, recipe=plan.recipe)
    recipe = config.recipe
    step_modifiers = runnable(recipe, step_modifiers) if step_modifiers else modifiers(recipe)
    for line in plan.lines():
        say(f"{name}: {line}")
    check_machine(plan, config)
    if _needs_text(config, step_modifiers):
        check_document_count(config.calibration)
    if config.preflight == "only":
        return None
    with locked(folder) if RANKS.get().is_first else nullcontext():
        check_destination(config)  # another run may have published it since
        if is_to_push_only(config):
            check_finished(folder, config)
        else:
            _write_checkpoint(config, folder, step_modifiers, plan)
    if config.push and RANKS.get().is_first:
        push(folder, config.push, config.push_private)
    return folder


def _write_checkpoint(
    config: QuantizeConfig, folder: Path, step_modifiers: list[Any], plan: Preflight
) -> None:
    """Makes and publishes the checkpoint while the run holds the folder's lock."""
    name, recipe, ranks = str(config.model.name), config.recipe, RANKS.get()
    phases = Phases()
    is_from_hub = config.calibration.source == "hub" and _needs_text(config, step_modifiers)
    if ranks.is_first and is_from_hub:
        check_hub_set(config.calibration)  # before a large model is fetched
    with phases.phase("fetch"):
        source = ranks.first_alone(lambda: fetch(config.model))
        check_source(source, config.model)
    if ranks.is_first:
        check_machine(plan, config)  # the fetched files may be on the same disk
    source_hash = ranks.of_first(weights_sha256(source) if ranks.is_first else "")
    with phases.phase("load"):
        model, tokenizer = load(source, config.model)
        if ranks.is_first:
            check_finite(model)
            check_usable(model, tokenizer, source, config.prompt)
    stored_as = save.source_dtype(source)
    text = ranks.first_alone(lambda: _calibration_text(config, tokenizer, step_modifiers))
    key = _key(config, source_hash, text) | {"config": read_config(source)}
    saved_layers = folder.with_name(f".{folder.name}.work")
    work = ranks.first_alone(lambda: WorkFolder(saved_layers, key, not ranks.is_first))
    log_file = folder.with_name(f"{folder.name}.log") if ranks.is_first else Path(os.devnull)
    say(f"{name}: {recipe.name} (log in {log_file})")
    with library_output_to(log_file) as console:
        if recipe.auto is not None:
            with phases.phase("choose"):
                recipe = chosen_recipe(
                    recipe, model, str(config.model.name), text.batches, work, console
                )
                config = replace(config, recipe=recipe)
                step_modifiers = modifiers(recipe)
            release(model)
            model, tokenizer = load(source, config.model)
        shards = sharded(text.batches, shard_count(config))
        with phases.phase("compress"), shards as batches_of_rank:
            outcome = compress(
                model,
                tokenizer,
                recipe,
                step_modifiers,
                batches_of_rank,
                work,
                console,
                stored_as,
                config.min_expert_tokens,
            )
        if not ranks.is_first:
            return  # the first rank has the same model, and writes it
        with published_atomically(folder, config.replace) as unfinished:
            with phases.phase("save"), gated(recipe.name):
                save.on_device(model)
                in_memory = probe(model)
                save.save(model, tokenizer, unfinished, stored_as)
                release(model)
            with phases.phase("prove"):
                saved_hash = checkpoint_hash(unfinished)
                proven = prove(unfinished, source, config, outcome, in_memory)
            manifest = _manifest(config, source_hash, text, outcome, phases, proven)
            manifest.seal(unfinished, source)
            manifest.write(unfinished)
            (unfinished / "README.md").write_text(model_card(manifest))
    work.remove()
    if not config.model.trust_remote_code:  # others verify without such code
        with suppress(OSError):  # without a mark it is verified once more
            verified_marks.leave(verified_marks.mark(folder, saved_hash))
    _print_summary(folder, manifest, proven, file_bytes(source))


def _calibration_text(config: QuantizeConfig, tokenizer: Any, step_modifiers: list[Any]) -> Text:
    """The calibration batches and their record; empty for a recipe that needs no text."""
    if not _needs_text(config, step_modifiers):
        return Text([], None)
    samples, counts = calibration_samples(config.calibration, tokenizer)
    say(f"text: {counts.samples} samples, {counts.tokens:,} tokens, {counts.cut_tokens:,} cut off")
    return Text(batches(samples, config.batch_size), TextRecord(config.calibration, counts))


def _needs_text(config: QuantizeConfig, step_modifiers: list[Any]) -> bool:
    by_modifiers = any(modifier.requires_calibration_data for modifier in step_modifiers)
    return config.recipe.needs_text or by_modifiers


def _key(config: QuantizeConfig, source_hash: str, text: Text) -> dict[str, object]:
    """Identifies a run: a finished layer is resumed only by a run with the same key."""
    recipe = asdict(config.recipe)
    for comment_field in ("description", "when", "hardware"):
        del recipe[comment_field]
    for step in known_steps().values():
        for gate in step.gates:  # a limit for the result, which changes no layer
            del recipe[step.name][gate]
    if config.recipe.file:
        recipe["content"] = Path(config.recipe.file).expanduser().read_text()
    return {
        "format": WORK_FORMAT,
        "calibration": CALIBRATION_VERSION,
        "model": source_hash,
        "recipe": recipe,
        "text": text.sha256,
        "batch_size": config.batch_size,
        "shards": shard_count(config),
        "versions": versions(),
        "device": device_name(),
        "cuda": torch.cuda.is_available(),  # the last bits of a CPU's and a GPU's sums differ
    }


def _manifest(
    config: QuantizeConfig,
    source_hash: str,
    text: Text,
    outcome: Outcome,
    phases: Phases,
    proven: Proven,
) -> Manifest:
    return Manifest(
        model=str(config.model.name),
        recipe=config.recipe.name,
        original=ModelClaim.model_validate(asdict(config.model)),
        model_sha256=source_hash,
        recipe_config=RecipeClaim.model_validate(asdict(config.recipe)),
        text=TextClaim.model_validate(asdict(text.record)) if text.record else None,
        errors=outcome.errors,
        fallbacks=outcome.fallbacks,
        expert_tokens=outcome.expert_tokens,
        layer_seconds=rounded_seconds(outcome.layer_seconds),
        resumed_layers=outcome.resumed_layers,
        seconds=phases.rounded_seconds(),
        peak_memory_gib=phases.peak_memory_gib(),
        versions=versions(),
        device=device_name(),
        proof=proven.claim(),
        canary=CanaryClaim(prompt=config.prompt, answer=proven.reply),
    )


def rounded_seconds(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {step: [round(value, 3) for value in values] for step, values in seconds.items()}


def versions() -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in PACKAGES}


def device_name() -> str:
    return str(resolve_gpu(GpuConfig()).name)


def weights_sha256(folder: Path) -> str:
    """One hash over all weight files, in the order of their names."""
    return files_sha256(sorted(path for path in folder.glob("*.safetensors") if path.is_file()))


def file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _print_summary(folder: Path, manifest: Manifest, proven: Proven, original_bytes: int) -> None:
    share = file_bytes(folder) / original_bytes
    say(
        f"{manifest.model}: {file_bytes(folder) / 1e6:.1f} MB ({share:.0%} of the original), "
        f"{duration(sum(manifest.seconds.values()))}"
    )
    for number_format, count in proven.proof.formats.items():
        say(f"proven: {count} layers {number_format}")
    say(f"proven: divergence after reloading {proven.divergence:.1e}")
    derivation = proven.derivation
    say(
        f"proven: made from the source's files: {derivation.unchanged} tensors unchanged, "
        f"{derivation.weights} weights at least {derivation.similarity:.4f} similar"
    )
    if manifest.expert_tokens:
        say(token_summary(manifest.expert_tokens))
    if manifest.fallbacks:
        say(f"{len(manifest.fallbacks)} modules could only be rounded: {manifest.fallbacks[0]} ...")
    say(f"asked: {manifest.canary.prompt}")
    say(f"it says: {proven.reply}")
    print(folder)
