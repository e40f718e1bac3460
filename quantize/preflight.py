"""What can be known before a weight is read: whether the recipe fits the model and the machine."""

import difflib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from compressed_tensors.utils import match_named_modules
from llmcompressor.modifiers.transform.awq.dynamic_mappings import (
    get_layer_mappings_from_model as awq_mappings,
)
from llmcompressor.modifiers.transform.smoothquant.dynamic_mappings import (
    get_layer_mappings_from_model as smoothquant_mappings,
)

from conf.errors import bad_input, world_fault
from conf.hardware import resolve_gpu
from conf.kernels import kernels
from conf.load_schema import GpuConfig
from conf.recipe_schema import GROUPED, HEAD_FORMATS, RecipeConfig
from conf.schema import AUTO, QuantizeConfig
from conf.terminal import listed
from quantize.load import empty_model

GROUP_SIZES = (128, 64, 32)
LISTED = 5  # modules that a message names before it says how many more
# Rough rates for the estimate, bf16 or float32 products: an H200 and two CPU cores, as measured.
FLOPS_GPU, FLOPS_CPU = 3e14, 4e10
TFLOPS_OF_MEASURED_GPU = 989
PASSES = {"smoothquant": 1, "awq": 24, "sparsegpt": 4, "gptq": 4, "autoround": 400, "rounding": 0}


@dataclass
class Preflight:
    """What the checks found; a check that fails raises instead."""

    recipe: RecipeConfig
    """The recipe with the command's own options in it and its group size settled."""
    modules: int
    """Modules that will be quantized or pruned."""
    disk_gib: float
    """Room needed for the checkpoint and for the layers kept against a crash."""
    host_gib: float
    """Host memory needed."""
    gpu_gib: float
    """GPU memory needed for one layer and its step; activations move to the host if they must."""
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
            *([] if self.recipe.file else [f"vLLM will run it with {kernels(self.recipe)}"]),
        ]


def preflight(source: Path, config: QuantizeConfig) -> Preflight:
    """Checks the recipe against the architecture; `check_machine` compares it with the machine."""
    model = empty_model(source, config.model.trust_remote_code)
    try:
        recipe = with_options(config, model)
    except ValueError as error:
        raise bad_input(str(error)) from error
    modules = check_fit(model, recipe, str(config.model.name))
    _check_mappings(model, recipe, str(config.model.name))
    needs = _needs(model, config, modules)
    return Preflight(recipe, len(modules), *needs, machine=_other_machine(config))


def _other_machine(config: QuantizeConfig) -> str:
    """The GPU that was asked for, where it is not the one here."""
    here = str(resolve_gpu(GpuConfig()).name)
    asked = config.gpu.name
    if asked in (None, here):
        return ""
    if config.preflight != "only":
        raise bad_input(
            f"gpu.name={asked}: quantizing uses what is here ({here}); gpu= goes with "
            "preflight=only, which plans for another GPU"
        )
    return str(asked)


def check_fit(model: Any, recipe: RecipeConfig, name: str) -> dict[str, Any]:
    """Raises where the recipe's formats do not fit the architecture; the modules they reach."""
    modules = dict(_matched(model, recipe.targets, recipe.ignore))
    _check_experts(model, name)
    _check_patterns(model, recipe)
    _check_head(model, recipe, modules)
    _check_groups(recipe, modules)
    _check_head_groups(model, recipe)
    return modules


def with_options(config: QuantizeConfig, model: Any) -> RecipeConfig:
    """The recipe with the options that go with any recipe."""
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


def fitting_group(model: Any, recipe: RecipeConfig) -> int:
    """The largest group that divides the columns of every module."""
    columns = {module.in_features for _, module in _matched(model, recipe.targets, recipe.ignore)}
    for size in GROUP_SIZES:
        if all(width % size == 0 for width in columns):
            return size
    raise bad_input(f"group_size=auto: none of {GROUP_SIZES} divides {sorted(columns)} columns")


def _matched(model: Any, targets: list[str], ignore: list[str]) -> list[tuple[str, Any]]:
    found = match_named_modules(model, targets, ignore)
    return [(name, module) for name, module in found if isinstance(module, torch.nn.Linear)]


def _check_patterns(model: Any, recipe: RecipeConfig) -> None:
    names = [name for name, _ in model.named_modules() if name]
    for option, patterns in (("targets", recipe.targets), ("ignore", recipe.ignore)):
        for pattern in patterns:
            if any(True for _ in match_named_modules(model, [pattern])):
                continue
            kinds = {type(module).__name__ for module in model.modules()}
            close = difflib.get_close_matches(pattern.removeprefix("re:"), [*names, *kinds], n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise bad_input(f"recipe.{option}: '{pattern}' matches no module.{hint}")


def _check_experts(model: Any, name: str) -> None:
    """transformers keeps a layer's experts in one tensor of three dimensions, which no recipe's
    patterns reach: the checkpoint would be the original's size and say it is quantized."""
    tensors = model.named_parameters()
    fused = [part for part, tensor in tensors if tensor.dim() > 2 and "experts" in part]
    if fused:
        raise bad_input(
            f"model={name}: its experts are kept as one tensor ({fused[0]} and {len(fused) - 1} "
            "more), which no recipe quantizes; only dense models can be quantized here"
        )


def _check_head(model: Any, recipe: RecipeConfig, modules: dict[str, Any]) -> None:
    if model.config.tie_word_embeddings and "lm_head" in modules and not recipe.lm_head:
        raise bad_input(
            "recipe.ignore: lm_head is the embedding in this model and would be quantized with it; "
            "leave it in recipe.ignore, or ask for it with lm_head=int8"
        )


def _check_groups(recipe: RecipeConfig, modules: dict[str, Any]) -> None:
    if recipe.weights is None or recipe.weights.group_size is None:
        return
    size = recipe.weights.group_size
    wrong = [
        f"{name} ({module.in_features} columns)"
        for name, module in modules.items()
        if module.in_features % size
    ]
    if wrong:
        raise bad_input(
            f"group size {size} does not divide {listed(wrong, LISTED)}; "
            "group_size=auto picks one that fits"
        )


def _check_head_groups(model: Any, recipe: RecipeConfig) -> None:
    size = HEAD_FORMATS[recipe.lm_head].group_size if recipe.lm_head else None
    if size and model.config.hidden_size % size:
        raise bad_input(
            f"lm_head={recipe.lm_head}: its groups of {size} do not divide the head's "
            f"{model.config.hidden_size} columns; use lm_head=int8"
        )


def _check_mappings(model: Any, recipe: RecipeConfig, name: str) -> None:
    finders = {"smoothquant": smoothquant_mappings, "awq": awq_mappings}
    architecture = type(model).__name__
    for step in recipe.steps:
        if step not in finders:
            continue
        try:
            mappings = finders[step](model)
        except Exception as error:
            raise bad_input(f"{step}: has no mapping for {architecture}: {error}") from error
        if not any(_mapping_matches(model, mapping) for mapping in mappings or []):
            raise bad_input(
                f"{step}: knows no layers to balance in {architecture} (model={name}); "
                "use a recipe without that step"
            )


def _mapping_matches(model: Any, mapping: Any) -> bool:
    smooth = getattr(mapping, "smooth_layer", None) or mapping[1]
    return any(
        True for _ in match_named_modules(model, [smooth] if isinstance(smooth, str) else smooth)
    )


def _needs(
    model: Any, config: QuantizeConfig, modules: dict[str, Any]
) -> tuple[float, float, float, float]:
    """Disk, host and GPU memory in GiB, and minutes."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    on_gpu = torch.cuda.is_available() or bool(_other_machine(config))
    disk = weights * 2 * 2  # the checkpoint and its kept layers, at the original's 16 bit
    host = weights * (2 if on_gpu else 4) * 1.3
    body = sum(module.in_features * module.out_features for module in modules.values())
    widest = max(module.in_features for module in modules.values()) if modules else 0
    layer = body / max(1, model.config.num_hidden_layers)
    gpu = (
        layer * 2 * 4 + widest**2 * 4 * 5
    )  # weights and copies, the widest Hessian, its inverse and a copy
    tokens = config.calibration.samples * config.calibration.length
    passes = sum(PASSES[step] for step in config.recipe.steps) if config.recipe.needs_text else 0
    share = (config.gpu.bf16_tflops or TFLOPS_OF_MEASURED_GPU) / TFLOPS_OF_MEASURED_GPU
    seconds = 2 * body * tokens * passes / (FLOPS_GPU * share if on_gpu else FLOPS_CPU)
    return disk / 2**30, host / 2**30, gpu / 2**30, seconds / 60


def check_machine(found: Preflight, config: QuantizeConfig) -> None:
    """Raises where disk or memory are too small for it now, with everything that is short."""
    short = _short_on_other(found, config) if found.machine else _short_here(found, config)
    if short:
        raise world_fault("; ".join(short))


def _short_on_other(found: Preflight, config: QuantizeConfig) -> list[str]:
    """Of another machine only the GPU's memory is known."""
    memory = config.gpu.memory_gib
    if memory is None or memory >= found.gpu_gib:
        return []
    return [f"{found.machine} has {memory:.1f} GiB, {found.gpu_gib:.1f} are needed"]


def _short_here(found: Preflight, config: QuantizeConfig) -> list[str]:
    place = Path(config.output_dir).expanduser().absolute()
    while not place.exists():
        place = place.parent
    disk = shutil.disk_usage(place).free / 2**30
    memory = psutil.virtual_memory().available / 2**30
    compared = [
        (disk, found.disk_gib, f"{place}: {disk:.1f} GiB are free"),
        (memory, found.host_gib, f"{memory:.1f} GiB of memory are free"),
    ]
    if torch.cuda.is_available():
        gpu = torch.cuda.mem_get_info()[0] / 2**30
        compared.append((gpu, found.gpu_gib, f"{gpu:.1f} GiB are free on the GPU"))
    return [
        f"{words}, {needed:.1f} are needed" for free, needed, words in compared if free < needed
    ]
