"""What a source model's config.json may say: the ranges of its numbers, and what must be stated.

transformers checks types, and fills a field that is missing with its class's default. A wrong
epsilon or rotary base changes every answer and no shape, so it is looked for here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from conf.errors import bad_input
from conf.files.json_files import shown
from conf.formats.quantization_config import KEY

PARTS = ("text_config", "rope_parameters", "rope_scaling")  # whose fields mean the same as the top
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
NO_TOKEN = -1  # how old Llama files say that there is no padding
# Fields that change the numbers and no shape, and families whose published files all state them.
FAMILIES = ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
EPSILON = re.compile(r"(^|_)eps(ilon)?$")
ACTIVATION = re.compile(r"^(hidden_act|activation_function)$")
ROPE_BASE, POSITIONS_COUNT = "rope_theta", "max_position_embeddings"
PLAIN_ROPE = {"rope_theta", "partial_rotary_factor"}  # what a rope without a type may state
STATES_ROPE_BASE = (4, 32)  # Llama files of earlier transformers do not, and mean the default
# Other weights than the folder's own, or changed modules: transformers would follow silently.
REDIRECTS = ("transformers_weights", "fusion_config")


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`; `above` excludes `low` itself."""

    low: float
    high: float
    whole: bool = True
    above: bool = False

    def fault(self, value: Any) -> str | None:
        kind = "a whole number" if self.whole else "a number"
        numeric = isinstance(value, int if self.whole else int | float)
        if not numeric or isinstance(value, bool):
            return f"{kind} is expected"
        if self.low <= value <= self.high and not (self.above and value == self.low):
            return None
        low = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        return f"{kind} {low} to {self.high:g} is expected"


SIZE = Range(1, 2**24)
HEADS = Range(1, 2**14)
POSITIONS = Range(1, 2**40)
SHARE = Range(0, 1, whole=False)
FACTOR = Range(0, 1e6, whole=False, above=True)
RANGES: list[tuple[re.Pattern[str], Range]] = [
    (re.compile(pattern), allowed)
    for pattern, allowed in (
        (r"^(hidden_size|intermediate_size|n_embd|d_model|ffn_dim|n_inner)$", SIZE),
        (r"^(num_hidden_layers|n_layer|num_layers)$", Range(1, 2**12)),
        (r"^(num_attention_heads|num_key_value_heads|n_head)$", HEADS),
        (r"^head_dim$", Range(2, 2**12)),
        (r"^vocab_size$", Range(2, 2**28)),
        (r"^(max_position_embeddings|n_positions)$", POSITIONS),
        (r"^original_max_position_embeddings$", POSITIONS),
        (r"^sliding_window$", POSITIONS),
        (r"(^|_)eps(ilon)?$", Range(0, 0.01, whole=False, above=True)),
        (r"^rope_(theta|local_base_freq)$", Range(100, 1e12, whole=False)),
        (r"^partial_rotary_factor$", Range(0, 1, whole=False, above=True)),
        (r"dropout$|_pdrop$", SHARE),
        (r"^initializer_range$", SHARE),
        (r"^(low_freq_factor|high_freq_factor|beta_fast|beta_slow)$", FACTOR),
        (r"^(attention_factor|attention_multiplier|logits_scaling)$", FACTOR),
        (r"^(embedding_multiplier|residual_multiplier|query_pre_attn_scalar)$", FACTOR),
        (r"softcapping$", FACTOR),
    )
]
ROPE_RANGES = {"factor": Range(1, 1e4, whole=False)}
MAY_BE_NULL = re.compile(
    r"^(num_key_value_heads|head_dim|sliding_window|n_inner|.*softcapping|.*dropout|"
    r"attention_factor|original_max_position_embeddings|partial_rotary_factor)$"
)


class Stated(NamedTuple):
    """One field of the file, its place and its value."""

    place: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.place}{self.name}"


def check_values(content: dict[str, Any], file: Path) -> None:
    """Raises over the first field whose value no model can have, before transformers sees it."""
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
    for stated in _stated(content):
        _check_number(stated, file)
    _check_dtype_name(content, file)
    _check_tokens(content, file)
    _check_heads(content, file)
    for name in ("rope_parameters", "rope_scaling"):
        _check_rope(_text(content).get(name), f"{file}: {name}")


def _check_rope(rope: Any, where: str) -> None:
    """Without its type, transformers passes over everything else that a rope states."""
    if not isinstance(rope, dict):
        return
    parts = {name: part for name, part in rope.items() if isinstance(part, dict)}
    for name in parts:
        if not name.endswith("_attention"):
            raise bad_input(f"{where}.{name} is an object, which only a kind of layer has")
    for part in parts.values() or [rope]:  # one for each kind of layer, or one for all
        if "rope_type" not in part and "type" not in part and set(part) - PLAIN_ROPE:
            raise bad_input(f"{where} has no rope_type, but states {sorted(part)}")


def _stated(content: dict[str, Any], place: str = "") -> Iterator[Stated]:
    """The fields of the file and of its parts."""
    for name, value in content.items():
        if name in PARTS and isinstance(value, dict):
            yield from _stated(value, f"{place}{name}.")
        elif isinstance(value, dict) and value and "rope" in place:
            yield from _stated(value, f"{place}{name}.")  # one for each kind of layer
        else:
            yield Stated(place, name, value)


def _check_number(stated: Stated, file: Path) -> None:
    allowed = next((range_ for pattern, range_ in RANGES if pattern.search(stated.name)), None)
    if "rope" in stated.place:
        allowed = ROPE_RANGES.get(stated.name, allowed)
    if allowed is None or (stated.value is None and MAY_BE_NULL.match(stated.name)):
        return
    values = stated.value if isinstance(stated.value, list) and stated.value else [stated.value]
    for value in values:  # some families give one for each layer
        fault = allowed.fault(value)
        if fault:
            raise bad_input(f"{file}: {stated.path} is {shown(value)}, {fault}")


def _check_dtype_name(content: dict[str, Any], file: Path) -> None:
    named = {key: content[key] for key in ("dtype", "torch_dtype") if content.get(key) is not None}
    for key, value in named.items():
        if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPES:
            known = ", ".join(DTYPES)
            raise bad_input(f"{file}: {key} is {shown(value)}, known are {known}")
    if len(set(named.values())) > 1:
        raise bad_input(f"{file}: dtype and torch_dtype differ")


def stated_dtype(content: dict[str, Any]) -> str | None:
    """The number type that the file names, as safetensors spells it."""
    part = content.get("text_config")
    inner = stated_dtype(part) if isinstance(part, dict) else None
    name = content.get("dtype") or content.get("torch_dtype")
    return DTYPES.get(str(name).removeprefix("torch.")) if name else inner


def _text(content: dict[str, Any]) -> dict[str, Any]:
    part = content.get("text_config")
    return (part if isinstance(part, dict) else {}) | content


def _check_tokens(content: dict[str, Any], file: Path) -> None:
    vocabulary = _text(content).get("vocab_size")
    if isinstance(vocabulary, int):
        check_token_ids(content, file, vocabulary)


def check_token_ids(content: dict[str, Any], file: Path, vocabulary: int) -> None:
    """Special tokens lie in the vocabulary."""
    for name in TOKENS:
        value = content.get(name)
        for token in value if isinstance(value, list) else [value]:
            if token is None or (token == NO_TOKEN and name == "pad_token_id"):
                continue
            if type(token) is not int or not 0 <= token < vocabulary:
                raise bad_input(
                    f"{file}: {name} is {shown(value)}, the vocabulary ends at {vocabulary - 1}"
                )


def _check_heads(content: dict[str, Any], file: Path) -> None:
    text = _text(content)
    heads, shared = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise bad_input(
            f"{file}: num_attention_heads {heads} is no multiple of num_key_value_heads {shared}"
        )
    width = text.get("hidden_size")
    if (
        isinstance(heads, int)
        and isinstance(width, int)
        and not text.get("head_dim")
        and width % heads
    ):
        raise bad_input(f"{file}: hidden_size {width} is no multiple of {heads} heads")
    kinds, layers = text.get("layer_types"), text.get("num_hidden_layers")
    if isinstance(kinds, list) and isinstance(layers, int) and len(kinds) != layers:
        raise bad_input(f"{file}: layer_types names {len(kinds)} layers of {layers}")
    if isinstance(kinds, list) and "sliding_attention" in kinds and not text.get("sliding_window"):
        raise bad_input(f"{file}: layer_types has sliding_attention, but no sliding_window is set")


def check_stated(content: dict[str, Any], config: Any, file: Path) -> None:
    """Raises where the file leaves out a field that transformers would fill with a default and
    that nothing in the weights can show to be wrong. `config`: transformers' reading of it."""
    text = getattr(config, "text_config", None) or config
    if text.model_type not in FAMILIES:
        return
    stated = {entry.name for entry in _stated(content)}
    aliases = {ours: theirs for theirs, ours in getattr(text, "attribute_map", {}).items()}
    names = [entry.name for entry in fields(text)] if is_dataclass(text) else []
    for name in names:
        if not (EPSILON.search(name) or ACTIVATION.match(name)):
            continue
        if name not in stated and aliases.get(name) not in stated:
            raise bad_input(f"{file}: there is no {name}; transformers would assume a default")
    needed = [ROPE_BASE] if "rope_parameters" in names else []
    needed += [POSITIONS_COUNT] if POSITIONS_COUNT in names else []
    for name in needed:
        if name not in stated and aliases.get(name) not in stated and not _is_old(content):
            raise bad_input(f"{file}: there is no {name}; transformers would assume a default")


def _is_old(content: dict[str, Any]) -> bool:
    """Whether the file is one of the first Llama's, which left fields to the defaults."""
    version = re.match(r"(\d+)\.(\d+)", str(content.get("transformers_version", "")))
    known = version and (int(version[1]), int(version[2]))
    return content.get("model_type") == "llama" and (not known or known < STATES_ROPE_BASE)
