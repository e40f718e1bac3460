"""Checks a source model's config.json: the ranges of its numbers, and its required fields.

transformers checks types, and fills a missing field with its class's default. A wrong epsilon or
rotary base changes every answer and no shape, so it is checked here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from conf.errors import bad_input
from conf.files.json_files import JsonObject, shown
from conf.formats.quantization_config import KEY

SECTIONS = (
    "text_config",
    "rope_parameters",
    "rope_scaling",
)  # objects whose fields count as top-level fields
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
NO_TOKEN = -1  # old Llama files mean by it that there is no padding
# Fields that change the numbers and no shape, and families whose published files all state them.
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
EPSILON = re.compile(r"(^|_)eps(ilon)?$")
ACTIVATION = re.compile(r"^(hidden_act|activation_function)$")
ROPE_BASE, POSITIONS_COUNT = "rope_theta", "max_position_embeddings"
PLAIN_ROPE = {"rope_theta", "partial_rotary_factor"}  # fields of a rope that needs no type
STATES_ROPE_BASE = (4, 32)  # Llama files of an earlier transformers omit it and mean the default
# Fields that make transformers load other weights or change modules, silently.
REDIRECTS = ("transformers_weights", "fusion_config")


@dataclass(frozen=True)
class FieldRange:
    """A number from `low` to `high`; `excludes_low` excludes `low` itself."""

    low: float
    high: float
    integer: bool = True
    excludes_low: bool = False

    def fault(self, value: Any) -> str | None:
        kind = "a whole number" if self.integer else "a number"
        is_number = isinstance(value, int if self.integer else int | float)
        if not is_number or isinstance(value, bool):
            return f"{kind} is expected"
        if self.low <= value <= self.high and not (self.excludes_low and value == self.low):
            return None
        low = f"above {self.low:g}" if self.excludes_low else f"from {self.low:g}"
        return f"{kind} {low} to {self.high:g} is expected"


SIZE = FieldRange(1, 2**24)
HEADS = FieldRange(1, 2**14)
POSITIONS = FieldRange(1, 2**40)
FRACTION = FieldRange(0, 1, integer=False)
FACTOR = FieldRange(0, 1e6, integer=False, excludes_low=True)
RANGES: list[tuple[re.Pattern[str], FieldRange]] = [
    (re.compile(pattern), allowed)
    for pattern, allowed in (
        (r"^(hidden_size|intermediate_size|n_embd|d_model|ffn_dim|n_inner)$", SIZE),
        (r"^(num_hidden_layers|n_layer|num_layers)$", FieldRange(1, 2**12)),
        (r"^(num_attention_heads|num_key_value_heads|n_head)$", HEADS),
        (r"^head_dim$", FieldRange(2, 2**12)),
        (r"^vocab_size$", FieldRange(2, 2**28)),
        (r"^(max_position_embeddings|n_positions)$", POSITIONS),
        (r"^original_max_position_embeddings$", POSITIONS),
        (r"^sliding_window$", POSITIONS),
        (r"(^|_)eps(ilon)?$", FieldRange(0, 0.01, integer=False, excludes_low=True)),
        (r"^rope_(theta|local_base_freq)$", FieldRange(100, 1e12, integer=False)),
        (r"^partial_rotary_factor$", FieldRange(0, 1, integer=False, excludes_low=True)),
        (r"dropout$|_pdrop$", FRACTION),
        (r"^initializer_range$", FRACTION),
        (r"^(low_freq_factor|high_freq_factor|beta_fast|beta_slow)$", FACTOR),
        (r"^(attention_factor|attention_multiplier|logits_scaling)$", FACTOR),
        (r"^(embedding_multiplier|residual_multiplier|query_pre_attn_scalar)$", FACTOR),
        (r"softcapping$", FACTOR),
    )
]
ROPE_RANGES = {"factor": FieldRange(1, 1e4, integer=False)}
MAY_BE_NULL = re.compile(
    r"^(num_key_value_heads|head_dim|sliding_window|n_inner|.*softcapping|.*dropout|"
    r"attention_factor|original_max_position_embeddings|partial_rotary_factor)$"
)


class StatedField(NamedTuple):
    """One field of the file: its place, name and value."""

    place: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.place}{self.name}"


def check_values(content: JsonObject, file: Path) -> None:
    """Raises for the first field whose value no model can have, before transformers reads it."""
    for redirect in REDIRECTS:
        if content.get(redirect) is not None:
            raise bad_input(f"{file}: {redirect} is not supported; remove it")
    if content.get(KEY) is not None:
        method = content[KEY]
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise bad_input(
            f"{file}: the model is quantized already (quant_method {shown(method)}); give the "
            "original"
        )
    for field in _stated_fields(content):
        _check_number(field, file)
    _check_dtype_name(content, file)
    _check_tokens(content, file)
    _check_heads(content, file)
    for name in ("rope_parameters", "rope_scaling"):
        _check_rope(_text_fields(content).get(name), f"{file}: {name}")


def _check_rope(rope: Any, where: str) -> None:
    """Refuses a rope without a type: transformers ignores its other fields."""
    if not isinstance(rope, dict):
        return
    layer_ropes = {
        name: layer_rope for name, layer_rope in rope.items() if isinstance(layer_rope, dict)
    }
    for name in layer_ropes:
        if not name.endswith("_attention"):
            raise bad_input(
                f"{where}.{name} is an object; only a layer type (..._attention) may be one"
            )
    for layer_rope in layer_ropes.values() or [rope]:  # one for each kind of layer, or one for all
        if (
            "rope_type" not in layer_rope
            and "type" not in layer_rope
            and set(layer_rope) - PLAIN_ROPE
        ):
            raise bad_input(f"{where} has no rope_type, but states {sorted(layer_rope)}")


def _stated_fields(content: JsonObject, place: str = "") -> Iterator[StatedField]:
    """The fields of the file and of its sections."""
    for name, value in content.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from _stated_fields(value, f"{place}{name}.")
        elif isinstance(value, dict) and value and "rope" in place:
            yield from _stated_fields(value, f"{place}{name}.")  # one for each kind of layer
        else:
            yield StatedField(place, name, value)


def _check_number(field: StatedField, file: Path) -> None:
    allowed = next(
        (field_range for pattern, field_range in RANGES if pattern.search(field.name)), None
    )
    if "rope" in field.place:
        allowed = ROPE_RANGES.get(field.name, allowed)
    if allowed is None or (field.value is None and MAY_BE_NULL.match(field.name)):
        return
    values = field.value if isinstance(field.value, list) and field.value else [field.value]
    for value in values:  # some families give one for each layer
        fault = allowed.fault(value)
        if fault:
            raise bad_input(f"{file}: {field.path} is {shown(value)}, {fault}")


def _check_dtype_name(content: JsonObject, file: Path) -> None:
    dtypes = {key: content[key] for key in ("dtype", "torch_dtype") if content.get(key) is not None}
    for key, value in dtypes.items():
        if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPES:
            known = ", ".join(DTYPES)
            raise bad_input(f"{file}: {key} is {shown(value)}; choose one of {known}")
    if len(set(dtypes.values())) > 1:
        raise bad_input(f"{file}: dtype and torch_dtype differ")


def stated_dtype(content: JsonObject) -> str | None:
    """The dtype that the file names, as safetensors spells it."""
    text_config = content.get("text_config")
    text_dtype = stated_dtype(text_config) if isinstance(text_config, dict) else None
    name = content.get("dtype") or content.get("torch_dtype")
    return DTYPES.get(str(name).removeprefix("torch.")) if name else text_dtype


def _text_fields(content: JsonObject) -> JsonObject:
    text_config = content.get("text_config")
    return (text_config if isinstance(text_config, dict) else {}) | content


def _check_tokens(content: JsonObject, file: Path) -> None:
    vocabulary = _text_fields(content).get("vocab_size")
    if isinstance(vocabulary, int):
        check_token_ids(content, file, vocabulary)


def check_token_ids(content: JsonObject, file: Path, vocabulary: int) -> None:
    """Raises if a special token lies outside the vocabulary."""
    for name in TOKENS:
        value = content.get(name)
        for token in value if isinstance(value, list) else [value]:
            if token is None or (token == NO_TOKEN and name == "pad_token_id"):
                continue
            if type(token) is not int or not 0 <= token < vocabulary:
                raise bad_input(
                    f"{file}: {name} is {shown(value)}, the vocabulary ends at {vocabulary - 1}"
                )


def _check_heads(content: JsonObject, file: Path) -> None:
    text = _text_fields(content)
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise bad_input(
            f"{file}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    width = text.get("hidden_size")
    if (
        isinstance(heads, int)
        and isinstance(width, int)
        and not text.get("head_dim")
        and width % heads
    ):
        raise bad_input(f"{file}: hidden_size {width} is no multiple of {heads} heads")
    layer_types, layers = text.get("layer_types"), text.get("num_hidden_layers")
    if isinstance(layer_types, list) and isinstance(layers, int) and len(layer_types) != layers:
        raise bad_input(f"{file}: layer_types names {len(layer_types)} layers of {layers}")
    if (
        isinstance(layer_types, list)
        and "sliding_attention" in layer_types
        and not text.get("sliding_window")
    ):
        raise bad_input(f"{file}: layer_types has sliding_attention, but no sliding_window is set")


def check_stated(content: JsonObject, config: Any, file: Path) -> None:
    """Raises if the file lacks a field for which transformers would take a default that the weights
    cannot show to be wrong. `config`: the file as transformers reads it."""
    text = getattr(config, "text_config", None) or config
    if text.model_type not in FAMILIES:
        return
    stated = {entry.name for entry in _stated_fields(content)}
    aliases = {name: alias for alias, name in getattr(text, "attribute_map", {}).items()}
    names = [entry.name for entry in fields(text)] if is_dataclass(text) else []
    for name in names:
        if not (EPSILON.search(name) or ACTIVATION.match(name)):
            continue
        if name not in stated and aliases.get(name) not in stated:
            raise bad_input(f"{file}: there is no {name}; transformers would assume a default")
    required = [ROPE_BASE] if "rope_parameters" in names else []
    required += [POSITIONS_COUNT] if POSITIONS_COUNT in names else []
    for name in required:
        if name not in stated and aliases.get(name) not in stated and not _is_old(content):
            raise bad_input(f"{file}: there is no {name}; transformers would assume a default")


def _is_old(content: JsonObject) -> bool:
    """Whether the file is an early Llama config, which left fields to the defaults."""
    version = re.match(r"(\d+)\.(\d+)", str(content.get("transformers_version", "")))
    numbers = version and (int(version[1]), int(version[2]))
    return content.get("model_type") == "llama" and (not numbers or numbers < STATES_ROPE_BASE)
