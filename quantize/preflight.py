"""Checks the recipe against the model and the machine before any weight is read."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from llmcompressor.modifiers import Modifier

from conf.errors import bad_input, environment_failure
from conf.formats.quant_args import GROUPED
from conf.hardware import resolve_gpu
from conf.schema.commands import AUTO, QuantizeConfig
from conf.schema.load import GpuConfig
from conf.schema.recipe import RecipeConfig
from quantize.estimate import (
    LayerShape,
    Text,
    activation_budget,
    block_bytes,
    calibration_seconds,
    inner_bytes,
    other_seconds,
    rates,
    step_bytes,
    stream_bytes,
    three_layers_bytes,
)
from quantize.fit import (
    Linears,
    check_fit,
    check_pattern_times,
    fitting_group,
    for_model,
    step_scopes_of_file,
)
from quantize.mixed.plan import check_layer_formats, trial_bytes, trial_seconds
from quantize.models.load import empty_model
from quantize.preflight_plan import Preflight
from quantize.steps.base.step import BYTES_16_BIT, steps_named

GIB = 2**30


def preflight(
    source: Path, config: QuantizeConfig, modifiers: list[Modifier] | None = None
) -> Preflight:
    """Checks the recipe against the architecture; `check_machine` compares it with the machine.
    `modifiers`: those of a recipe.file, each with its own modules."""
    model = empty_model(source, config.model.trust_remote_code)
    patterns = [*config.recipe.targets, *config.recipe.ignore, *config.ignore]
    check_pattern_times(model, "recipe", patterns)
    try:
        recipe = with_options(config, model)
    except ValueError as error:
        raise bad_input(str(error)) from error
    name = str(config.model.name)
    scopes = step_scopes_of_file(recipe, modifiers) if modifiers else None
    modules = check_fit(model, recipe, name, scopes)
    if recipe.auto is not None:
        check_layer_formats(model, recipe, name, modules)
    for number, step in enumerate(steps_named(recipe.steps)):
        option = f"{recipe.file}: {step.modifier_name}" if recipe.file else step.name
        step.check_model(model, name, modifiers[number] if modifiers else None, option)
    return _planned(model, config, recipe, modules)


def _other_machine(config: QuantizeConfig) -> str:
    """The requested GPU, if it is not this machine's; else an empty string."""
    local_gpu = str(resolve_gpu(GpuConfig()).name)
    requested_gpu = config.gpu.name
    if requested_gpu in (None, local_gpu):
        return ""
    if config.preflight != "only":
        raise bad_input(
            f"gpu.name={requested_gpu}: quantizing uses what is here ({local_gpu}); gpu= works "
            "only with preflight=only, which plans for another GPU"
        )
    return str(requested_gpu)


def with_options(config: QuantizeConfig, model: Any) -> RecipeConfig:
    """The recipe with the command's own options applied."""
    recipe = for_model(config.recipe, model)
    recipe = replace(
        recipe,
        ignore=[*recipe.ignore, *config.ignore],
        kv_cache=config.kv_cache or config.recipe.kv_cache,
        lm_head=config.lm_head or config.recipe.lm_head,
    )
    if recipe.auto is not None and (config.bits or config.min_recovery):
        auto = replace(recipe.auto, bits=config.bits, min_recovery=config.min_recovery)
        recipe = replace(recipe, auto=auto)
    if config.group_size is None:
        return recipe
    if recipe.weights is None or recipe.weights.strategy not in GROUPED:
        raise bad_input(f"group_size={config.group_size}: recipe={recipe.name} has no groups")
    size = fitting_group(model, recipe) if config.group_size == AUTO else int(config.group_size)
    return replace(recipe, weights=replace(recipe.weights, group_size=size))


def _planned(
    model: Any, config: QuantizeConfig, recipe: RecipeConfig, modules: Linears
) -> Preflight:
    """The plan with its estimates of memory and time."""
    other_machine = _other_machine(config)
    on_gpu = torch.cuda.is_available() or bool(other_machine)
    gpu = resolve_gpu(config.gpu)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else math.inf
    if other_machine:
        free = gpu.memory_gib * GIB if gpu.memory_gib else math.inf
    calibration, steps = config.calibration, steps_named(recipe.steps)
    samples = math.ceil(calibration.samples / config.gpus) if recipe.needs_text else 0
    text = Text(samples, calibration.length, min(samples, config.batch_size))
    shape = LayerShape.of(model)
    needed = max((step_bytes(step, shape, text.batch_tokens) for step in steps), default=0.0)
    vocabulary = model.config.get_text_config().vocab_size
    trials = trial_bytes(recipe, modules, vocabulary, text)
    if trials:
        needed = max(needed, three_layers_bytes(shape) + trials)
    stream = stream_bytes(shape, text) + block_bytes(steps, shape, text)
    budget = activation_budget(free, needed)
    placed = min(stream, budget)
    placed_if_room = min(inner_bytes(steps, shape, text), budget - placed)
    weights = sum(parameter.numel() for parameter in model.parameters())
    host = weights * (2 if on_gpu else 4) * 1.3
    host += stream - placed if on_gpu else max(2 * stream, trials)
    host *= config.gpus  # each process holds the model
    rate = rates(gpu.bf16_tflops, on_gpu)
    seconds = calibration_seconds(recipe, steps, shape, text, rate) if samples else 0.0
    seconds += trial_seconds(recipe, modules, weights, shape, text, rate)
    return Preflight(
        recipe,
        len(modules),
        disk_gib=weights * 2 * 2 / GIB,  # the checkpoint and the layers saved for a resume
        host_gib=host / GIB,
        gpu_gib=needed / GIB,
        gpu_peak_gib=(needed + placed + placed_if_room) / GIB,
        model_gib=weights * BYTES_16_BIT / GIB,
        calibration_s=seconds,
        other_s=other_seconds(weights),
        machine=other_machine,
        has_experts=shape.has_experts,
        gpus=config.gpus,
        card_gib=gpu.memory_gib if on_gpu else None,
    )


def check_machine(plan: Preflight, config: QuantizeConfig) -> None:
    """Raises if disk or memory are too small now; the message names everything that is short."""
    shortages = (
        _shortages_elsewhere(plan, config) if plan.machine else _shortages_here(plan, config)
    )
    if shortages:
        raise environment_failure("; ".join(shortages))


def _shortages_elsewhere(plan: Preflight, config: QuantizeConfig) -> list[str]:
    """The shortages of another machine, of which only the GPU's memory is known."""
    memory = config.gpu.memory_gib
    if memory is None or memory >= plan.gpu_gib:
        return []
    return [f"{plan.machine} has {memory:.1f} GiB, {plan.gpu_gib:.1f} are needed"]


def _shortages_here(plan: Preflight, config: QuantizeConfig) -> list[str]:
    existing_folder = Path(config.output_dir).expanduser().absolute()
    while not existing_folder.exists():
        existing_folder = existing_folder.parent
    disk = shutil.disk_usage(existing_folder).free / 2**30
    memory = psutil.virtual_memory().available / 2**30
    resources = [
        (disk, plan.disk_gib, f"{existing_folder}: {disk:.1f} GiB are free"),
        (memory, plan.host_gib, f"{memory:.1f} GiB of memory are free"),
    ]
    if torch.cuda.is_available():
        gpu = torch.cuda.mem_get_info()[0] / 2**30
        resources.append((gpu, plan.gpu_gib, f"{gpu:.1f} GiB are free on the GPU"))
    return [
        f"{free_text}, {needed:.1f} are needed"
        for free, needed, free_text in resources
        if free < needed
    ]
