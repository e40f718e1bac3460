"""Turns errors of Hydra and OmegaConf into one sentence that says how to fix the input."""

import dataclasses
import re
import types
import typing
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from conf.errors import unknown

FULL_KEY = re.compile(r"full_key: (\S+)")
CONVERSION = re.compile(
    r"Value '(?P<value>.*)' (?:of type .* could not be converted to|is not a valid) "
    r"(?P<kind>\w+)(?: \(type .*\))?"
)
NO_OPTIONS = re.compile(r"^Cannot assign \w+ to Dict|is not a subclass of \w+")
# OmegaConf's words for an option of a part that is null, and for options given to it together.
UNSET_PART = ("Unexpected type for root: NoneType", "'NoneType' object has no attribute 'get'")
KINDS = {"Integer": "whole number", "Float": "number", "bool": "boolean: write true or false"}


def explain(error: BaseException) -> str:
    """One message for a composition error, without Hydra's advice for its own users."""
    if isinstance(error, MissingConfigException):
        return _missing_config(error)
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' is no option: write NAME=VALUE (quote what has brackets)"
    if isinstance(error, OverflowError):
        option = FULL_KEY.search(str(error))
        return f"{option[1] if option else 'an option'}: the number is too large"
    cause = _omegaconf_cause(error)
    if any(words in str(error) for words in UNSET_PART):
        part = FULL_KEY.search(str(error))
        what = (
            f"{part[1]}: is null here" if part else "an option belongs to a part that is null here"
        )
        return (
            f"{what}, as recipe.auto or recipe.activations may be; set the part in a recipe file "
            "of your own that builds on this recipe (defaults: [NAME])"
        )
    if cause is None:
        return " ".join(str(error).split())
    prefix = _file_prefix(error)
    key = str(cause.full_key or cause.key or "")
    if isinstance(cause, ConfigKeyError) and dataclasses.is_dataclass(cause.object_type):
        known = [field.name for field in dataclasses.fields(cause.object_type)]
        return prefix + str(unknown(key, key.rsplit(".", 1)[-1], known))
    reason = str(cause.msg or cause).split("\n", 1)[0]
    if isinstance(cause, ConfigKeyError) and "." in key:
        group, _, name = key.rpartition(".")
        return f"{prefix}{key}: {name} was not chosen; {group}=[...] chooses them"
    if isinstance(cause, ValidationError) and NO_OPTIONS.search(reason):
        return f"{prefix}{key}: has options of its own; write {key}.NAME=VALUE"
    if isinstance(cause, ValidationError):
        conversion = CONVERSION.fullmatch(reason)
        if conversion:
            reason = (
                f"{conversion['value']} is no {KINDS.get(conversion['kind'], conversion['kind'])}"
            )
        return f"{prefix}{key}: {reason}"
    return f"{prefix}{key}: {reason}" if key and key not in reason else f"{prefix}{reason}"


def _missing_config(error: MissingConfigException) -> str:
    config_path = error.missing_cfg_file or ""
    group, _, name = config_path.rpartition("/")
    if not group:
        return " ".join(str(error).split())
    return str(unknown(f"{group}={name}", name, error.options or []))


def _omegaconf_cause(error: BaseException | None) -> OmegaConfBaseException | None:
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            return error
        error = error.__cause__ or error.__context__
    return None


def _file_prefix(error: BaseException) -> str:
    """Hydra begins its message with the config it was merging: In 'recipe/name': ..."""
    text = str(error)
    if text.startswith("In '"):
        return text.split("'", 2)[1] + ".yaml: "
    return ""


def check_key(key: str, schema: type[Any]) -> None:
    """Raises if no option has this name. A free mapping accepts any name."""
    current: Any = schema
    path: list[str] = []
    for name in key.replace("/", ".").split("."):
        if typing.get_origin(current) is dict:  # its keys are free, its values are typed
            current = typing.get_args(current)[1]
            path.append(name)
            continue
        if not dataclasses.is_dataclass(current):
            return
        fields = typing.get_type_hints(current)
        if name not in fields:
            known = [".".join([*path, field]) for field in fields]
            raise unknown("option", ".".join([*path, name]), known)
        current = without_none(fields[name])
        path.append(name)


def field_type(key: str, schema: type[Any]) -> Any:
    """The type of an option by its full name; None without such an option."""
    current: Any = schema
    for name in key.split("."):
        if not dataclasses.is_dataclass(current):
            return None
        current = without_none(typing.get_type_hints(current).get(name))
    return current


def without_none(hint: Any) -> Any:
    """`X` for `X | None`; other types unchanged."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return members[0] if len(members) == 1 else hint
    return hint
