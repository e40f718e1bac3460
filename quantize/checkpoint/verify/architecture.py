"""Builds the architecture that a config.json describes, and checks that its fields agree.

transformers raises errors of many types for a config that it cannot build; here they become one.
"""

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject, shown
from conf.formats.quantization_config import KEY
from conf.models import CONFIG
from quantize.checkpoint.claims import ABSENT, COSMETIC, differences
from quantize.models.load import empty_model

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
SPELLING_CUTOFF = 0.9  # similarity of a misspelt field; different real fields are less similar
TIED = "tie_word_embeddings"


def build(folder: Path, config: JsonObject, names: Iterable[str], trust_remote_code: bool) -> Any:
    """The architecture without weights."""
    _check_layers(folder / CONFIG, config, names)
    try:
        with _silenced_transformers():
            return empty_model(folder, trust_remote_code)
    except QuantlineError:
        raise
    except Exception as error:
        raise _build_error(folder / CONFIG, error) from error


@contextmanager
def _silenced_transformers() -> Iterator[None]:
    """Silences transformers' own warnings about fields; our message replaces them."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)


def _check_layers(path: Path, config: JsonObject, names: Iterable[str]) -> None:
    """Raises if the config states more layers than are stored: building them could take minutes."""
    stated_layers = config.get("num_hidden_layers")
    stored_layers = {int(match[1]) for name in names if (match := LAYER.search(name)) is not None}
    if isinstance(stated_layers, int) and stored_layers and stated_layers > max(stored_layers) + 1:
        raise bad_input(
            f"{path}: num_hidden_layers is {stated_layers}, the files hold layers 0 to "
            f"{max(stored_layers)}"
        )


def _build_error(path: Path, error: Exception) -> QuantlineError:
    reason = " ".join(str(error).split())[:300]
    return bad_input(f"{path}: transformers cannot build it ({type(error).__name__}: {reason})")


def field_faults(config: JsonObject) -> list[str]:
    """Fields that contradict the model type: a class of another type, and misspelt names, for which
    transformers would silently take a default."""
    model_type = str(config.get("model_type"))
    if model_type not in CONFIG_MAPPING or "auto_map" in config:
        return []
    return [*_class_faults(config, model_type), *_spelling_faults(config, model_type)]


def _class_faults(config: JsonObject, model_type: str) -> list[str]:
    mappings = [
        mapping
        for name, mapping in vars(modeling_auto).items()
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")
    ]
    known_classes = {
        entry for mapping in mappings for entry in _as_tuple(mapping.get(model_type, ()))
    }
    stated_classes = config.get("architectures")
    if not isinstance(stated_classes, list) or not stated_classes:
        return [f"{CONFIG}: architectures names no class; engines choose the model by it"]
    return [
        f"{CONFIG}: architectures holds {shown(name)}, which is no class of model_type {model_type}"
        for name in stated_classes
        if known_classes and name not in known_classes
    ]


def _spelling_faults(config: JsonObject, model_type: str) -> list[str]:
    known_fields = set(CONFIG_MAPPING[model_type]().to_dict())
    absent_fields = sorted(known_fields - set(config))
    faults = []
    for name in sorted(set(config) - known_fields):
        for suggestion in difflib.get_close_matches(
            name, absent_fields, n=1, cutoff=SPELLING_CUTOFF
        ):
            faults.append(f"{CONFIG}: there is no field {shown(name)}. Did you mean {suggestion}?")
    return faults


def _as_tuple(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def differs_from_source(
    source: JsonObject, published: JsonObject, head_is_stored: bool
) -> list[str]:
    """Faults of fields in which a checkpoint's config.json differs from its original's.

    transformers reads both first: it writes some fields under newer names, and all defaults.
    """
    text_config = source.get("text_config")
    if isinstance(text_config, dict) and text_config.get("model_type") == published.get(
        "model_type"
    ):
        source = text_config  # only the language model of a multimodal one was kept
    source_fields, published_fields = (_normalized(content) for content in (source, published))
    faults = []
    for key, old, new in differences(source_fields, published_fields):
        is_untied = key == TIED and old is True and new is False and head_is_stored
        is_newly_stated = key.rpartition(".")[2] == "dtype" and old is None
        if not is_untied and not is_newly_stated:
            faults.append(
                f"{CONFIG}: {key} is {_shown_value(new)}, the original has {_shown_value(old)}"
            )
    return faults


def _shown_value(value: Any) -> str:
    return "nothing" if value is ABSENT else shown(value)


def _normalized(content: JsonObject) -> JsonObject:
    content = {key: value for key, value in content.items() if key != KEY}
    model_type = content.get("model_type")
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        try:
            with _silenced_transformers():
                content = CONFIG_MAPPING[model_type].from_dict(content).to_dict()
        except Exception as error:
            raise _build_error(Path(CONFIG), error) from error
    skipped = COSMETIC[CONFIG] | {"max_position_embeddings", "architectures"}
    return {
        key: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
        for key, value in content.items()
        if key not in skipped and not key.startswith("_")
    }
