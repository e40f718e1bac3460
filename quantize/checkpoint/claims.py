"""The claims of a manifest about the files beside it, and where the files differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError
from conf.files.json_files import JsonObject, check_regular, read_object, shown
from conf.files.model_config import ROPE_KEYS
from conf.models import CONFIG, files_sha256

TOKENIZER_CONFIG = "tokenizer_config.json"
# Fields that users may edit: they do not change what the model computes.
COSMETIC = {
    CONFIG: frozenset({"transformers_version", "_name_or_path", "use_cache"}),
    TOKENIZER_CONFIG: frozenset(
        {
            *("chat_template", "model_max_length", "padding_side", "truncation_side"),
            *("name_or_path", "is_local", "local_files_only", "processor_class"),
        }
    ),
}
# The context length may be edited, unless the encoding of positions is computed from it.
CONTEXT_FIELD = "max_position_embeddings"
CONTEXT_DEPENDENT_ROPES = ("dynamic", "yarn", "longrope")
# Files that may be edited: some fields of those above, all of the template.
EDITABLE = (*COSMETIC, "chat_template.jinja")
# Files that an engine reads if they are present; an unpublished one changes the model.
READ_BY_ENGINES = (
    *("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt"),
    *("added_tokens.json", "special_tokens_map.json", TOKENIZER_CONFIG, "params.json"),
    *("model.safetensors.index.json", "adapter_config.json", "hf_quant_config.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
WEIGHTS = ".safetensors"
ABSENT = object()


def digest(path: Path) -> str:
    """A file's hash; empty for one that may be edited."""
    return "" if path.name in EDITABLE else files_sha256([path])


def changed(folder: Path, claimed: dict[str, str]) -> list[str]:
    """Faults of files that are missing or whose content is not what was published."""
    faults = []
    for name, published in claimed.items():
        try:
            check_regular(folder / name)
            current = digest(folder / name)
        except QuantlineError as error:
            missing = not (folder / name).exists()
            faults.append(f"{name} is missing" if missing else str(error))
            continue
        if current != published:
            faults.append(f"{name} is not what was published, its hash differs")
    return faults


def added(folder: Path, claimed: dict[str, str]) -> list[str]:
    """Faults of files that an engine would read and that were not published."""
    names = sorted(path.name for path in folder.iterdir() if path.name not in claimed)
    return [
        f"{shown(name)[1:-1]} was not published with the checkpoint"
        for name in names
        if name in READ_BY_ENGINES or name.endswith(WEIGHTS)
    ]


def fields(path: Path) -> JsonObject:
    """The fields of a file that affect what the model computes."""
    content = read_object(path)
    return {key: value for key, value in content.items() if key not in COSMETIC[path.name]}


def edited(folder: Path, published: dict[str, JsonObject]) -> list[str]:
    """Faults of edited fields that affect what the model computes."""
    faults = []
    for name, original in published.items():
        try:
            current = fields(folder / name)
        except QuantlineError as error:
            faults.append(str(error))
            continue
        if name == CONFIG and not _positions_depend_on_context(original):
            current, original = (
                {**fields_of_file, CONTEXT_FIELD: None} for fields_of_file in (current, original)
            )
        for key, old, new in differences(original, current):
            faults.append(f"{name}: {key} {_change_text(old, new)}")
    return faults


def _change_text(old: Any, new: Any) -> str:
    if new is ABSENT:
        return f"is gone, it was published as {shown(old)}"
    if old is ABSENT:
        return f"is {shown(new)}, it was published without it"
    return f"is {shown(new)}, it was published as {shown(old)}"


def _positions_depend_on_context(config: JsonObject) -> bool:
    """Whether the encoding of positions depends on the longest context."""
    return any(
        kind in str(config.get(key)) for key in ROPE_KEYS for kind in CONTEXT_DEPENDENT_ROPES
    )


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place where two JSON values differ. 1 and 1.0 are the same, 1 and true are not."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            inner_key = f"{key}.{name}" if key else name
            yield from differences(old.get(name, ABSENT), new.get(name, ABSENT), inner_key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{key}[{number}]")
    elif isinstance(old, bool) != isinstance(new, bool) or old != new:
        yield key, old, new
