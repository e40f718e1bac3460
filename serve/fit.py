"""Checks that a checkpoint fits this machine's GPUs: memory, context, heads, groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from conf.errors import bad_input, environment_failure
from conf.formats.quantization_config import quantization_of
from conf.hardware import gpu_memory_gib
from conf.models import (
    CONFIG,
    head_width,
    kv_head_count,
    kv_values_per_token,
    read_config,
    required_int,
)
from conf.schema.load import PARALLEL, EngineOptions
from quantize.checkpoint.manifest import is_pruned
from serve.engine.launch import CPU_KV_CACHE_GIB, environment
from serve.kernels.memory import extra_bytes
from serve.kernels.settings import ENTRY, OPTION, read_settings
from serve.tensors import tensors

GIB = 2**30
SHARE = 0.9  # of a GPU's memory
SPARE_SHARE = 0.02
WORKING_GIB = 2.0  # activations, graphs and what CUDA itself takes, on a GPU
BLOCK = 16  # tokens
SHORTEST = 256


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
    weights = _weights_gib(folder, options) / (tensor * pipeline)
    token_bytes = kv_token_bytes(config, options) / pipeline
    limit = required_int(config, "max_position_embeddings")
    context = int(options.get("max_model_len") or 0)
    if context > limit and "hf_overrides" not in options:
        raise bad_input(f"engine.max_model_len={context}: the model was made for {limit:,}")
    cards = gpu_memory_gib()[: tensor * pipeline * data]
    if not cards:
        return _on_cpu(weights, token_bytes, limit)
    weights += _layouts_gib(folder, config, options) / (tensor * pipeline)
    total, free = min(cards, key=lambda card: card[1])
    utilization = float(options.get("gpu_memory_utilization") or 0)
    if utilization * total > free:
        raise environment_failure(
            f"engine.gpu_memory_utilization={utilization:g}: {utilization * total:.1f} GiB are "
            f"requested, {free:.1f} of {total:.1f} GiB are free"
        )
    share = utilization or min(SHARE, max(0.0, free / total - SPARE_SHARE))
    cache = share * total - weights - WORKING_GIB
    if cache * GIB < token_bytes * min(SHORTEST, limit):
        raise environment_failure(
            f"{folder}: needs {weights:.1f} GiB for its weights, {WORKING_GIB:.0f} GiB to work and "
            f"room for a cache; {free:.1f} of {total:.1f} GiB are free. Take a smaller format, or "
            "split it with engine.tensor_parallel_size"
        )
    return Fit(weights, cache, _tokens(cache, token_bytes), limit, share, total - free)


def _weights_gib(folder: Path, options: EngineOptions) -> float:
    """Memory of the weights in the engine: plain numbers in its own type, others as stored."""
    float_bytes = 4 if options.get("dtype") == "float32" else 2
    return sum(tensor.held_bytes(float_bytes) for tensor in tensors(folder).values()) / GIB


def _layouts_gib(folder: Path, config: Mapping[str, object], options: EngineOptions) -> float:
    """Memory of further layouts of the weights, for our kernels."""
    entries = options.get(OPTION) or {}
    if ENTRY not in entries:
        return 0.0
    stored, quantization = tensors(folder), quantization_of(config)
    settings, pruned = read_settings(entries), bool(is_pruned(folder))
    return extra_bytes(stored, quantization, settings, pruned) / GIB


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
    tensor, pipeline, data = (int(options.get(name, 1)) for name in PARALLEL)
    config = read_config(folder)
    if tensor > 1:
        _check_heads(folder, config, tensor)
        _check_groups(folder, config, tensor)
    layers = required_int(config, "num_hidden_layers")
    if pipeline > layers:
        raise bad_input(f"engine.pipeline_parallel_size={pipeline}: the model has {layers} layers")
    needed_gpus, available_gpus = tensor * pipeline * data, len(gpu_memory_gib())
    if (
        available_gpus
        and needed_gpus > available_gpus
        and options.get("distributed_executor_backend") != "ray"
    ):
        raise bad_input(
            f"{needed_gpus} GPUs are needed and {available_gpus} are here; across hosts: "
            "engine.distributed_executor_backend=ray"
        )


def _check_heads(folder: Path, config: Mapping[str, object], gpus: int) -> None:
    heads = required_int(config, "num_attention_heads")
    kv_heads = kv_head_count(config, heads)
    if heads % gpus:
        raise bad_input(
            f"engine.tensor_parallel_size={gpus}: {folder / CONFIG} has {heads} attention heads, "
            "which cannot be split evenly"
        )
    if kv_heads % gpus and gpus % kv_heads:
        raise bad_input(
            f"engine.tensor_parallel_size={gpus}: {kv_heads} key-value heads can neither be "
            "split nor copied evenly"
        )


def _inner_widths(config: Mapping[str, object]) -> dict[str, int]:
    """The columns of each kind of MLP's last layer. A mixture has one for its experts, and may
    have another for a shared expert; its own `intermediate_size` is that of dense layers."""
    widths = {"down_proj": config.get("intermediate_size")}
    if config.get("moe_intermediate_size"):
        widths = {
            "experts.down_proj": config.get("moe_intermediate_size"),
            "shared_expert.down_proj": config.get("shared_expert_intermediate_size"),
        }
    return {name: width for name, width in widths.items() if isinstance(width, int) and width}


def _check_groups(folder: Path, config: Mapping[str, object], gpus: int) -> None:
    """Raises where a layer that is split along its inputs would be cut inside a group."""
    quantization = quantization_of(config)
    heads = required_int(config, "num_attention_heads")
    columns_of = {"o_proj": heads * head_width(config), **_inner_widths(config)}
    groups = quantization.groups if quantization is not None else []
    sizes = [group.weights.group_size for group in groups if group.weights is not None]
    for size in filter(None, sizes):
        for name, columns in columns_of.items():
            if columns % (gpus * size):
                raise bad_input(
                    f"engine.tensor_parallel_size={gpus}: {name} has {columns} columns in groups "
                    f"of {size}, which {gpus} parts would cut; quantize with a smaller group_size"
                )
