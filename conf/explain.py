"""Turns what Hydra and OmegaConf complain about into one sentence that says how to mend it."""

import dataclasses
import re
import types
import typing
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from conf.errors import unknown

CONVERSION = re.compile(
    r"Value '(?P<value>.*)' (?:of type .* could not be converted to|is not a valid) "
    r"(?P<kind>\w+)(?: \(type .*\))?"
)
NO_OPTIONS = re.compile(r"^Cannot assign \w+ to Dict|is not a subclass of \w+")
KINDS = {"Integer": "whole number", "Float": "number", "bool": "answer: write true or false"}


def explain(error: BaseException) -> str:
    """One message for a composition error, without Hydra's advice for its own users."""
    if isinstance(error, MissingConfigException):
        return _missing(error)
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' is no option: write NAME=VALUE (quote what has brackets)"
    cause = _omegaconf_cause(error)
    if cause is None:
        return " ".join(str(error).split())
    where = _file_of(error)
    key = str(cause.full_key or cause.key or "")
    if isinstance(cause, ConfigKeyError) and dataclasses.is_dataclass(cause.object_type):
        known = [field.name for field in dataclasses.fields(cause.object_type)]
        return where + str(unknown(key, key.rsplit(".", 1)[-1], known))
    reason = str(cause.msg or cause).split("\n", 1)[0]
    if isinstance(cause, ConfigKeyError) and "." in key:
        group, _, name = key.rpartition(".")
        return f"{where}{key}: {name} was not chosen; {group}=[...] says which are"
    if isinstance(cause, ValidationError) and NO_OPTIONS.search(reason):
        return f"{where}{key}: has options of its own; write {key}.NAME=VALUE"
    if isinstance(cause, ValidationError):
        wrong = CONVERSION.fullmatch(reason)
        if wrong:
            reason = f"{wrong['value']} is no {KINDS.get(wrong['kind'], wrong['kind'])}"
        return f"{where}{key}: {reason}"
    return f"{where}{key}: {reason}" if key and key not in reason else f"{where}{reason}"


def _missing(error: MissingConfigException) -> str:
    wanted = error.missing_cfg_file or ""
    group, _, name = wanted.rpartition("/")
    if not group:
        return " ".join(str(error).split())
    return str(unknown(f"{group}={name}", name, error.options or []))


def _omegaconf_cause(error: BaseException | None) -> OmegaConfBaseException | None:
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            return error
        error = error.__cause__ or error.__context__
    return None


def _file_of(error: BaseException) -> str:
    """Hydra begins its message with the config it was merging: In 'recipe/name': ..."""
    text = str(error)
    if text.startswith("In '"):
        return text.split("'", 2)[1] + ".yaml: "
    return ""


def check_key(key: str, schema: type[Any]) -> None:
    """Raises if no option has this name; a free mapping on the way takes any name."""
    at: Any = schema
    path: list[str] = []
    for name in key.replace("/", ".").split("."):
        if typing.get_origin(at) is dict:  # whose names are free, but not what they stand for
            at = typing.get_args(at)[1]
            path.append(name)
            continue
        if not dataclasses.is_dataclass(at):
            return
        fields = typing.get_type_hints(at)
        if name not in fields:
            known = [".".join([*path, field]) for field in fields]
            raise unknown("option", ".".join([*path, name]), known)
        at = without_none(fields[name])
        path.append(name)


def field_type(key: str, schema: type[Any]) -> Any:
    """The type of an option by its whole name; none where there is no such option."""
    at: Any = schema
    for name in key.split("."):
        if not dataclasses.is_dataclass(at):
            return None
        at = without_none(typing.get_type_hints(at).get(name))
    return at


def without_none(hint: Any) -> Any:
    """`X` for `X | None`, and the value type of a mapping of dataclasses is left to Hydra."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return inner[0] if len(inner) == 1 else hint
    return hint
