"""Where tensor and pipeline parallelism may cut a checkpoint.

q, k, v, gate and up are cut between their rows, o and down between their columns. A cut must not
go through an attention head, a group of weights that share a scale, a block of FP8 scales, a packed
word, a vector of a codebook, or four weights of a 2:4 mask.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.errors import bad_input
from conf.formats.quant_args import GROUPED, INT, QuantArgs, QuantGroup, QuantizationConfig
from conf.formats.quantization_config import quantization_of
from conf.hardware import gpu_handles
from conf.mixture import MIXTURES, QWEN, MixtureNames
from conf.models import CONFIG, head_width, kv_head_count, read_config, required_int
from conf.schema.load import PARALLEL, EngineOptions
from conf.schema.ranges import MASK_WIDTH
from quantize.checkpoint.manifest import is_pruned

BACKEND, RAY = "distributed_executor_backend", "ray"
WORD_BITS = 32  # of the words into which weights of fewer than 8 bits are packed
ATTENTION, MLP = "self_attn", "mlp"


@dataclass(frozen=True)
class Cut:
    """One side of a layer that tensor parallelism divides."""

    layer: str
    side: str
    """rows or columns."""
    size: int
    unit: int
    """What must stay whole, in rows or columns."""
    what: str
    """The unit in words."""
    most_parts: int | None = None
    """Parts beyond which a side is copied, not divided: the number of key-value heads."""

    def is_whole(self, gpus: int) -> bool:
        parts = min(gpus, self.most_parts or gpus)
        return self.size % (parts * self.unit) == 0


def check_splits(folder: Path, options: EngineOptions) -> None:
    """Raises where the engine's parallel sizes do not fit the checkpoint."""
    tensor, pipeline, _ = (int(options.get(name, 1)) for name in PARALLEL)
    if tensor > 1:
        _check_tensor(folder, read_config(folder), tensor)
    if pipeline > 1:
        layers = required_int(read_config(folder), "num_hidden_layers")
        if pipeline > layers:
            raise bad_input(
                f"engine.pipeline_parallel_size={pipeline}: the model has {layers} layers"
            )
    if options.get(BACKEND) == RAY:
        _check_ray()


def _check_ray() -> None:
    """Raises where vLLM would start no workers on Ray."""
    option = f"engine.{BACKEND}={RAY}"
    if importlib.util.find_spec("ray") is None:
        raise bad_input(
            f"{option}: the package ray is not installed; install the same version on every host"
        )
    if not gpu_handles():  # "current platform cpu does not support ray"
        raise bad_input(
            f"{option}: vLLM runs on Ray with GPUs only, and there is none here; without this "
            "option it starts its workers itself"
        )


def stage_share(config: Mapping[str, object], stages: int) -> float:
    """The share of the layers that the largest pipeline stage has."""
    layers = required_int(config, "num_hidden_layers")
    return -(-layers // stages) / layers


def _check_tensor(folder: Path, config: Mapping[str, object], gpus: int) -> None:
    cuts = list(_cuts(config, quantization_of(config), bool(is_pruned(folder))))
    heads, option = required_int(config, "num_attention_heads"), "engine.tensor_parallel_size"
    fault = _head_fault(config, gpus)
    cut = next((cut for cut in cuts if not cut.is_whole(gpus)), None)
    if fault is None and cut is None:
        return
    sizes = [
        size
        for size in range(1, heads + 1)
        if _head_fault(config, size) is None and all(cut.is_whole(size) for cut in cuts)
    ]
    would_do = f"sizes that would do: {', '.join(map(str, sizes))}"
    if fault is not None:
        raise bad_input(f"{option}={gpus}: {folder / CONFIG} has {fault}; {would_do}")
    assert cut is not None
    raise bad_input(
        f"{option}={gpus}: {cut.layer} has {cut.size} {cut.side} in {cut.what}, which {gpus} parts "
        f"would cut; {would_do}"
        + ("; or quantize with a smaller group_size" if "groups" in cut.what else "")
    )


def _head_fault(config: Mapping[str, object], gpus: int) -> str | None:
    heads = required_int(config, "num_attention_heads")
    kv_heads = kv_head_count(config, heads)
    if heads % gpus:
        return f"{heads} attention heads, which cannot be split evenly"
    if kv_heads % gpus and gpus % kv_heads:
        return f"{kv_heads} key-value heads, which can neither be split nor copied evenly"
    return None


def _cuts(
    config: Mapping[str, object], quantization: QuantizationConfig | None, pruned: bool
) -> Iterator[Cut]:
    """The sides of quantized layers that have something to keep whole."""
    groups = quantization.groups if quantization is not None else []
    ignored = quantization.ignore if quantization is not None else []
    for name, rows, columns, kv_heads in _layers(config):
        layer = name.rpartition(".")[2]
        for group in groups:
            if group.weights is None or not _applies(group, ignored, name):
                continue
            for unit, what in _row_units(group.weights):
                if rows is not None:
                    yield Cut(layer, "rows", rows, unit, what, kv_heads)
            for unit, what in _column_units(group.weights):
                if columns is not None:
                    yield Cut(layer, "columns", columns, unit, what)
        if pruned and columns is not None:
            yield Cut(layer, "columns", columns, MASK_WIDTH, "2:4 masks of four")


def _layers(
    config: Mapping[str, object],
) -> Iterator[tuple[str, int | None, int | None, int | None]]:
    """The layers of a decoder layer: name, the rows or the columns that are divided, and for keys
    and values the number of their heads. A mixture has experts of their own width, and may have a
    shared one; its own `intermediate_size` is that of dense layers."""
    heads, width = required_int(config, "num_attention_heads"), head_width(config)
    kv_heads = kv_head_count(config, heads)
    yield f"{ATTENTION}.q_proj", heads * width, None, None
    yield f"{ATTENTION}.k_proj", kv_heads * width, None, kv_heads
    yield f"{ATTENTION}.v_proj", kv_heads * width, None, kv_heads
    yield f"{ATTENTION}.o_proj", None, heads * width, None
    for prefix, inner, names in _gated_blocks(config):
        if isinstance(inner, int) and inner:
            yield f"{prefix}.{names.gate}", inner, None, None
            yield f"{prefix}.{names.up}", inner, None, None
            yield f"{prefix}.{names.down}", None, inner, None


def _gated_blocks(config: Mapping[str, object]) -> Iterator[tuple[str, object, MixtureNames]]:
    """The feed-forward blocks of a decoder layer: name, width inside, and the products' names.
    Families that are not known name them as Qwen's do."""
    names = MIXTURES.get(str(config.get("model_type")), QWEN)
    if not config.get(names.width):
        yield MLP, config.get("intermediate_size"), QWEN
        return
    yield f"{names.experts}.0", config.get(names.width), names
    yield f"{MLP}.shared_expert", config.get("shared_expert_intermediate_size"), QWEN


def _row_units(weights: QuantArgs) -> Iterator[tuple[int, str]]:
    if weights.block_structure:
        yield weights.block_structure[0], f"blocks of {weights.block_structure[0]}"
    if weights.codebooks is not None:
        length = max(weights.codebooks.vector_length, weights.codebooks.outlier_vector_length)
        yield length, f"vectors of {length}"


def _column_units(weights: QuantArgs) -> Iterator[tuple[int, str]]:
    if weights.group_size and (weights.strategy in GROUPED or not weights.strategy):
        yield weights.group_size, f"groups of {weights.group_size}"
    if weights.block_structure:
        yield weights.block_structure[1], f"blocks of {weights.block_structure[1]}"
    if weights.type == INT and 0 < weights.bits < 8 and WORD_BITS % weights.bits == 0:
        packed = WORD_BITS // weights.bits
        yield packed, f"packed words of {packed}"


def _applies(group: QuantGroup, ignored: list[str], name: str) -> bool:
    """Whether the group quantizes a layer in any of the decoder layers."""
    path = f"model.layers.0.{name}"
    if group.is_head or any(_matches(pattern, path) for pattern in ignored):
        return False
    return not group.targets or any(
        target == "Linear" or _matches(target, path) for target in group.targets
    )


def _matches(pattern: str, path: str) -> bool:
    """As compressed-tensors matches names; a plain name of another layer number counts, too."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), path) is not None
    return re.sub(r"\.\d+\.", ".0.", pattern) == path
