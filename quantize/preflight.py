"""Checks the recipe against the model and the machine before any weight is read."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from llmcompressor.modifiers import Modifier

from conf.errors import bad_input, world_fault
from conf.formats.served import kernels
from conf.hardware import resolve_gpu
from conf.schema.commands import AUTO, QuantizeConfig
from conf.schema.load import GpuConfig
from conf.schema.recipe import GROUPED, RecipeConfig
from quantize.fit import Linears, check_fit, check_pattern_times, fitting_group, step_scopes_of_file
from quantize.models.load import empty_model
from quantize.steps.base.step import steps_named

# Rough rates for the estimate, bf16 or float32 products: an H200 and two CPU cores, as measured.
FLOPS_GPU, FLOPS_CPU = 3e14, 4e10
TFLOPS_OF_MEASURED_GPU = 989


@dataclass
class Preflight:
    """The result of the checks; a check that fails raises instead."""

    recipe: RecipeConfig
    """The recipe with the command's options applied and its group size resolved."""
    modules: int
    """Modules that will be quantized or pruned."""
    disk_gib: float
    """Disk space needed for the checkpoint and for the layers saved for a resume."""
    host_gib: float
    """Host memory needed."""
    gpu_gib: float
    """GPU memory needed for one layer and its step; activations move to the host if needed."""
    minutes: float
    """A rough estimate of the calibration."""
    machine: str = ""
    """The GPU that the plan is for, where it is not this machine."""

    def lines(self) -> list[str]:
        return [
            *([f"planned for {self.machine}, not for this machine"] if self.machine else []),
            f"{self.modules} modules, {', then '.join(self.recipe.steps)}",
            f"needs {self.disk_gib:.1f} GiB of disk, {self.host_gib:.1f} GiB of memory and, on a "
            f"GPU, {self.gpu_gib:.1f} GiB there; about {max(self.minutes, 0.1):.1f} min",
            *([] if self.recipe.file else [f"vLLM will run it with {_kernel_names(self.recipe)}"]),
        ]


def _kernel_names(recipe: RecipeConfig) -> str:
    weights = recipe.weights.stored if recipe.weights else None
    activations = recipe.activations.stored if recipe.activations else None
    return kernels(weights, activations)


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
    for number, step in enumerate(steps_named(recipe.steps)):
        option = f"{recipe.file}: {step.modifier_name}" if recipe.file else step.name
        step.check_model(model, name, modifiers[number] if modifiers else None, option)
    needs = _estimated_needs(model, config, modules)
    return Preflight(recipe, len(modules), *needs, machine=_other_machine(config))


def _other_machine(config: QuantizeConfig) -> str:
    """The requested GPU, if it is not this machine's; else an empty string."""
    local_gpu = str(resolve_gpu(GpuConfig()).name)
    requested_gpu = config.gpu.name
    if requested_gpu in (None, local_gpu):
        return ""
    if config.preflight != "only":
        raise bad_input(
            f"gpu.name={requested_gpu}: quantizing uses what is here ({local_gpu}); gpu= goes with "
            "preflight=only, which plans for another GPU"
        )
    return str(requested_gpu)


def with_options(config: QuantizeConfig, model: Any) -> RecipeConfig:
    """The recipe with the command's own options applied."""
    recipe = replace(
        config.recipe,
        ignore=[*config.recipe.ignore, *config.ignore],
        kv_cache=config.kv_cache or config.recipe.kv_cache,
        lm_head=config.lm_head or config.recipe.lm_head,
    )
    if config.group_size is None:
        return recipe
    if recipe.weights is None or recipe.weights.strategy not in GROUPED:
        raise bad_input(f"group_size={config.group_size}: recipe={recipe.name} has no groups")
    size = fitting_group(model, recipe) if config.group_size == AUTO else int(config.group_size)
    return replace(recipe, weights=replace(recipe.weights, group_size=size))


def _estimated_needs(
    model: Any, config: QuantizeConfig, modules: Linears
) -> tuple[float, float, float, float]:
    """Disk, host and GPU memory in GiB, and minutes."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    on_gpu = torch.cuda.is_available() or bool(_other_machine(config))
    disk = weights * 2 * 2  # the checkpoint and the layers saved for a resume, 16 bits each
    host = weights * (2 if on_gpu else 4) * 1.3
    matrix_weights = sum(module.in_features * module.out_features for module in modules.values())
    widest = max(module.in_features for module in modules.values()) if modules else 0
    layer_weights = matrix_weights / max(1, model.config.num_hidden_layers)
    steps = steps_named(config.recipe.steps)
    gpu = max((step.gpu_bytes(layer_weights, widest) for step in steps), default=0.0)
    samples = config.calibration.samples if config.recipe.needs_text else 0
    tokens = samples * config.calibration.length
    passes = sum(step.passes_for(config.recipe, samples) for step in steps)
    relative_speed = (config.gpu.bf16_tflops or TFLOPS_OF_MEASURED_GPU) / TFLOPS_OF_MEASURED_GPU
    seconds = (
        2 * matrix_weights * tokens * passes / (FLOPS_GPU * relative_speed if on_gpu else FLOPS_CPU)
    )
    return disk / 2**30, host / 2**30, gpu / 2**30, seconds / 60


def check_machine(plan: Preflight, config: QuantizeConfig) -> None:
    """Raises if disk or memory are too small now; the message names everything that is short."""
    shortages = (
        _shortages_elsewhere(plan, config) if plan.machine else _shortages_here(plan, config)
    )
    if shortages:
        raise world_fault("; ".join(shortages))


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
