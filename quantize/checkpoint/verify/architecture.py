"""The architecture that a config.json describes, and whether its fields agree with each other.

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
from conf.files.json_files import shown
from conf.formats.quantization_config import KEY
from conf.models import CONFIG
from quantize.checkpoint.claims import ABSENT, COSMETIC, differences
from quantize.models.load import empty_model

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
CLOSE = 0.9  # of two spellings; real fields that look alike are farther apart
TIED = "tie_word_embeddings"


def build(folder: Path, config: dict[str, Any], names: Iterable[str], trust: bool) -> Any:
    """The architecture without weights."""
    _check_layers(folder / CONFIG, config, names)
    try:
        with _quiet():
            return empty_model(folder, trust)
    except QuantlineError:
        raise
    except Exception as error:
        raise _unusable(folder / CONFIG, error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own warnings about fields: they would stand beside our message."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)


def _check_layers(path: Path, config: dict[str, Any], names: Iterable[str]) -> None:
    """A config that claims far more layers than there are would be built for minutes."""
    claimed = config.get("num_hidden_layers")
    present = {int(match[1]) for name in names if (match := LAYER.search(name)) is not None}
    if isinstance(claimed, int) and present and claimed > max(present) + 1:
        raise bad_input(
            f"{path}: num_hidden_layers is {claimed}, the files hold layers 0 to {max(present)}"
        )


def _unusable(path: Path, error: Exception) -> QuantlineError:
    reason = " ".join(str(error).split())[:300]
    return bad_input(f"{path}: transformers cannot build it ({type(error).__name__}: {reason})")


def field_faults(config: dict[str, Any]) -> list[str]:
    """What contradicts the model type: a class of another one, and misspelt fields, for which
    transformers would take a default without a word."""
    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING or "auto_map" in config:
        return []
    return [*_class_faults(config, kind), *_spelling_faults(config, kind)]


def _class_faults(config: dict[str, Any], kind: str) -> list[str]:
    mappings = [
        mapping
        for name, mapping in vars(modeling_auto).items()
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")
    ]
    own = {entry for mapping in mappings for entry in _each(mapping.get(kind, ()))}
    named = config.get("architectures") or []
    if not named:
        return [f"{CONFIG}: architectures names no class; engines choose the model by it"]
    return [
        f"{CONFIG}: architectures holds {shown(name)}, which is no class of model_type {kind}"
        for name in named
        if own and name not in own
    ]


def _spelling_faults(config: dict[str, Any], kind: str) -> list[str]:
    known = set(CONFIG_MAPPING[kind]().to_dict())
    absent = sorted(known - set(config))
    faults = []
    for name in sorted(set(config) - known):
        for meant in difflib.get_close_matches(name, absent, n=1, cutoff=CLOSE):
            faults.append(f"{CONFIG}: there is no field {shown(name)}. Did you mean {meant}?")
    return faults


def _each(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def differs_from_source(
    source: dict[str, Any], published: dict[str, Any], head_is_stored: bool
) -> list[str]:
    """Fields in which a checkpoint's config.json describes another model than its original's.

    Both are read by transformers first: it writes some fields under newer names, and all defaults.
    """
    text = source.get("text_config") or {}
    if text.get("model_type") == published.get("model_type"):
        source = text  # only the language model of several parts was kept
    before, after = (_normalized(content) for content in (source, published))
    faults = []
    for key, old, new in differences(before, after):
        untied = key == TIED and old is True and new is False and head_is_stored
        stated = key.rpartition(".")[2] == "dtype" and old is None
        if not untied and not stated:
            faults.append(f"{CONFIG}: {key} is {_shown(new)}, the original has {_shown(old)}")
    return faults


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else shown(value)


def _normalized(content: dict[str, Any]) -> dict[str, Any]:
    content = {key: value for key, value in content.items() if key != KEY}
    kind = content.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        try:
            with _quiet():
                content = CONFIG_MAPPING[kind].from_dict(content).to_dict()
        except Exception as error:
            raise _unusable(Path(CONFIG), error) from error
    skipped = COSMETIC[CONFIG] | {"max_position_embeddings", "architectures"}
    return {
        key: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
        for key, value in content.items()
        if key not in skipped and not key.startswith("_")
    }
