"""Checks a team's config file against the typed options before Hydra merges it.

Hydra's own error about a wrong type often names neither the key nor the file.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from omegaconf import MISSING

from conf.errors import unknown
from conf.explain import without_none
from conf.files.strict_yaml import Keys, YamlFile

DEFAULTS = "defaults"  # Hydra's own key: what the file builds on
KINDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
TRUTHS = ("true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "0", "1")


def check_types(file: YamlFile, schema: type[Any]) -> None:
    """Raises for the first key that is no option, or whose value has the wrong type."""
    if isinstance(file.content, dict):
        values = {key: value for key, value in file.content.items() if key != DEFAULTS}
        _check_mapping(file, (), values, schema)


def check_named(file: YamlFile, schema: type[Any]) -> None:
    """The same for a file whose keys are free names, each with options of its own."""
    for name, value in (file.content or {}).items():
        if name != DEFAULTS:
            _check_value(file, (name,), value, schema)


def _check_mapping(file: YamlFile, keys: Keys, values: Mapping[str, object], schema: Any) -> None:
    hints = typing.get_type_hints(schema)
    for name, value in values.items():
        if name not in hints:
            raise file.error((*keys, name), str(unknown("key", name, hints)))
        _check_value(file, (*keys, name), value, hints[name])


def _check_value(file: YamlFile, keys: Keys, value: Any, hint: Any) -> None:
    value_type = without_none(hint)
    if value_type is Any or _is_reference(value):
        return
    if value == MISSING or (value is None and value_type is hint):
        raise file.error(keys, f"{value or 'null'}: a value is needed")
    if value is None:
        return
    if dataclasses.is_dataclass(value_type):
        if not isinstance(value, dict):
            raise file.error(keys, f"{value!r}: has options of its own, as NAME: VALUE")
        _check_mapping(file, keys, value, value_type)
    elif typing.get_origin(value_type) is list:
        if not isinstance(value, list):
            raise file.error(keys, f"{value!r}: must be a list, as [{value}]")
        for number, item in enumerate(value):
            _check_value(file, (*keys, number), item, typing.get_args(value_type)[0])
    elif typing.get_origin(value_type) is dict:
        if not isinstance(value, dict):
            raise file.error(keys, f"{value!r}: must be a mapping of names to values")
        for name, item in value.items():
            _check_value(file, (*keys, name), item, typing.get_args(value_type)[1])
    elif not _fits(value, value_type):
        raise file.error(keys, f"{value!r}: must be {KINDS[value_type]}")


def _is_reference(value: Any) -> bool:
    """Whether the value refers to another option."""
    return isinstance(value, str) and value.startswith("${")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(value, dict | list):
        return False
    if kind is bool:
        return str(value).lower() in TRUTHS
    if kind in (int, float):
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            return False
        try:
            kind(value)
        except (ValueError, TypeError, OverflowError):
            return False
    return True
