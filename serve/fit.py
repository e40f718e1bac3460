"""Checks that a checkpoint fits this machine's GPUs: memory, context, heads, groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from conf.errors import bad_input, environment_failure
from conf.formats.quantization_config import quantization_of
from conf.hardware import gpu_memory_gib
from conf.models import kv_values_per_token, read_config, required_int
from conf.schema.kernels import SPARSE
from conf.schema.load import KV_CACHE_SIZE, PARALLEL, EngineOptions, gpus_of
from serve.engine.launch import CPU_KV_CACHE_GIB, environment
from serve.engine.sparsity import is_sparse24
from serve.engine.splits import BACKEND, RAY, check_splits, stage_share
from serve.kernels.memory import Room, copying_families, extra_bytes
from serve.kernels.settings import ENTRY, OPTION, read_settings
from serve.kernels.vptq.memory import wider_numbers_bytes
from serve.tensors import tensors

GIB = 2**30
SHARE = 0.9  # of a GPU's memory
SPARE_SHARE = 0.02
WORKING_GIB = 2.0  # activations, graphs and what CUDA itself takes, on a GPU
BLOCK = 16  # tokens
SHORTEST = 256
LAYERS = ".layers."  # in the names of decoder layers' tensors


@dataclass
class Fit:
    """The memory that a checkpoint needs and the memory that is available."""

    weights_gib: float
    """On each GPU."""
    cache_gib: float
    """Left for the KV cache, on each GPU."""
    context: int
    """Tokens of one request that the cache holds."""
    limit: int
    """The model's longest context, in tokens."""
    share: float | None
    """The share of a GPU's memory that the engine may use; None on a CPU."""
    taken_gib: float = 0.0
    """GPU memory that other programs use."""


def fit(folder: Path, options: EngineOptions) -> Fit:
    """Raises where the weights or a useful cache do not fit."""
    config = read_config(folder)
    tensor, pipeline, data = (int(options.get(name, 1)) for name in PARALLEL)
    stage = stage_share(config, pipeline)  # of the layers, in the largest stage
    weights = _weights_gib(folder, options, stage) / tensor
    token_bytes = kv_token_bytes(config, options) * stage
    limit = required_int(config, "max_position_embeddings")
    context = int(options.get("max_model_len") or 0)
    if context > limit and "hf_overrides" not in options:
        raise bad_input(f"engine.max_model_len={context}: the model was made for {limit:,}")
    cards = gpu_memory_gib()[: tensor * pipeline * data]
    if not cards:
        return _on_cpu(weights, token_bytes, limit)
    total, free = min(cards, key=lambda card: card[1])
    utilization = float(options.get("gpu_memory_utilization") or 0)
    if utilization * total > free:
        raise environment_failure(
            f"engine.gpu_memory_utilization={utilization:g}: {utilization * total:.1f} GiB are "
            f"requested, {free:.1f} of {total:.1f} GiB are free"
        )
    share = utilization or min(SHARE, max(0.0, free / total - SPARE_SHARE))
    room = Room(weights * GIB, (share * total - weights) * GIB, (free - weights) * GIB)
    further = _layouts_gib(folder, config, options, room) + _codebooks_gib(folder, config)
    weights += further * stage / tensor
    cache = share * total - weights - WORKING_GIB
    if cache * GIB < token_bytes * min(SHORTEST, limit):
        raise environment_failure(
            f"{folder}: needs {weights:.1f} GiB for its weights, {WORKING_GIB:.0f} GiB to work and "
            f"room for a cache; {free:.1f} of {total:.1f} GiB are free. Take a smaller format, or "
            "split it with engine.tensor_parallel_size"
        )
    return Fit(weights, cache, _tokens(cache, token_bytes), limit, share, total - free)


def _weights_gib(folder: Path, options: EngineOptions, stage: float) -> float:
    """Memory of a pipeline stage's weights in the engine: plain numbers in its own type, others as
    stored. `stage`: its share of the layers. The first of several stages has the embedding, the
    last one the head."""
    float_bytes = 4 if options.get("dtype") == "float32" else 2
    layers, ends = 0.0, []
    for name, tensor in tensors(folder).items():
        held = tensor.held_bytes(float_bytes)
        if LAYERS in name:
            layers += held
        else:
            ends.append(held)
    return (layers * stage + (sum(ends) if stage == 1 else max(ends, default=0.0))) / GIB


def _layouts_gib(
    folder: Path,
    config: Mapping[str, object],
    options: EngineOptions,
    room: Room,
) -> float:
    """GiB of the further layouts of the weights that our kernels will keep."""
    entries = options.get(OPTION) or {}
    if ENTRY not in entries:
        return 0.0
    stored, quantization = tensors(folder), quantization_of(config)
    settings = read_settings(entries)
    pruned = SPARSE in settings.families and is_sparse24(folder)
    families = copying_families(stored, quantization, settings, pruned)
    if settings.second_layout is None:
        reserved = options.get(KV_CACHE_SIZE)
        cache = float(reserved) if isinstance(reserved, int) else None
        # The engine decides by the first layer that it loads, which may be of any of them.
        if not any(room.is_enough(family, cache) for family in families):
            return 0.0
    return extra_bytes(stored, quantization, settings, pruned) / GIB


def _codebooks_gib(folder: Path, config: Mapping[str, object]) -> float:
    """GiB by which weights in codebooks are larger on a GPU, whichever kernels are asked for."""
    return wider_numbers_bytes(tensors(folder), quantization_of(config)) / GIB


def _on_cpu(weights: float, token_bytes: float, limit: int) -> Fit:
    cache = float(environment().get("VLLM_CPU_KVCACHE_SPACE") or CPU_KV_CACHE_GIB)
    free = psutil.virtual_memory().available / GIB
    if weights + cache > free:
        raise environment_failure(
            f"it needs {weights:.1f} GiB for its weights and {cache:g} GiB for the cache, "
            f"{free:.1f} GiB are free; VLLM_CPU_KVCACHE_SPACE=GIB lowers the cache"
        )
    return Fit(weights, cache, _tokens(cache, token_bytes), limit, None)


def _tokens(cache_gib: float, token_bytes: float) -> int:
    return int(cache_gib * GIB / token_bytes) // BLOCK * BLOCK


def kv_token_bytes(config: Mapping[str, object], options: EngineOptions) -> float:
    """Bytes of cache for each token of context on each GPU."""
    values = kv_values_per_token(config, int(options.get("tensor_parallel_size", 1)))
    quantization = quantization_of(config)
    has_scales = quantization is not None and quantization.kv_cache is not None
    cache_dtype = str(options.get("kv_cache_dtype", "auto"))
    if cache_dtype.startswith("fp8") or (cache_dtype == "auto" and has_scales):
        return float(values)
    return float(values * (4 if options.get("dtype") == "float32" else 2))


def check_parallel(folder: Path, options: EngineOptions) -> None:
    """Raises where a split would cut a head or a group, or needs more GPUs than there are."""
    check_splits(folder, options)
    needed_gpus, available_gpus = gpus_of(options), len(gpu_memory_gib())
    if available_gpus and needed_gpus > available_gpus and options.get(BACKEND) != RAY:
        raise bad_input(
            f"{needed_gpus} GPUs are needed and {available_gpus} are here; across hosts: "
            f"engine.{BACKEND}={RAY}"
        )
