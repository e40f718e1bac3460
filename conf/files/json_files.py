"""Reads JSON files of other tools. An error is one message with the file and the key."""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from conf.errors import QuantlineError, bad_input, environment_failure

JsonObject = dict[str, JsonValue]
"""An object of a JSON file that another tool wrote: any key, any JSON value."""

LARGEST_FILE = 1 << 28  # bytes; the largest tokenizers have 40 MB
LARGEST_INTEGER = 10**38  # tokenizers write 10**30 for "no limit"
# Mamba's configs hold an open interval. Nothing else has a reason to be infinite.
MAY_BE_INFINITE = frozenset({"time_step_limit"})
MOST_SHOWN = 80  # characters of a value in a message


class _RepeatedKeyError(ValueError):
    """A key appears twice in an object: readers disagree on which one counts."""


def check_regular(path: Path) -> None:
    """Raises where the path is no plain file of its folder. Opening a FIFO would wait forever."""
    name = shown(path.name)[1:-1]
    if path.is_symlink():
        _check_link(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise bad_input(f"{shown_path(path.parent)}: there is no {name}") from error
    except (OSError, ValueError) as error:
        raise bad_input(f"{shown_path(path)}: cannot be read ({_reason(error)})") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise bad_input(f"{shown_path(path)}: is {kind}, a file is expected")


def _check_link(path: Path) -> None:
    """Raises for a link out of the folder, except into the blobs of a hub cache."""
    target = Path(os.path.realpath(path))
    root = Path(os.path.realpath(path.parent))
    if not any(target.is_relative_to(allowed) for allowed in (root, root.parent.parent / "blobs")):
        raise bad_input(f"{shown_path(path)}: is a link out of the folder, to {target}")
    if not target.exists():
        raise bad_input(f"{shown_path(path)}: is a link to {target.name}, which is not there")


def read_text(path: Path) -> str:
    """A UTF-8 text file without a byte order mark."""
    check_regular(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise bad_input(f"{shown_path(path)}: has {path.stat().st_size:,} bytes, too many")
        content = path.read_bytes()
    except PermissionError as error:
        raise bad_input(f"{shown_path(path)}: cannot be read ({_reason(error)})") from error
    except OSError as error:
        raise environment_failure(
            f"{shown_path(path)}: cannot be read ({_reason(error)})"
        ) from error
    if not content.strip():
        raise bad_input(f"{shown_path(path)}: is empty")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_input(f"{shown_path(path)}: is not UTF-8 (byte {error.start})") from error
    if text.startswith("\ufeff"):
        raise bad_input(
            f"{shown_path(path)}: begins with a byte order mark; save it as plain UTF-8"
        )
    return text


def read_object(path: Path) -> JsonObject:
    """The JSON object in a file."""
    return parse_object(read_text(path), shown_path(path))


def parse_object(text: str, where: str, is_line: bool = False) -> JsonObject:
    """The JSON object in a text: no key twice, every number finite, every string valid Unicode.
    For a single line, `where` names the line."""
    try:
        content = without_repeats(text)
        if not isinstance(content, dict):
            raise bad_input(f"{where}: holds {_type_text(content)}, a JSON object is expected")
        _check_values(content, where, "")
    except (ValueError, RecursionError) as error:
        raise no_json(error, where, is_line) from error
    return content


def without_repeats(text: str) -> Any:
    """The JSON value in a text whose objects have no key twice. Raises what `no_json` explains."""
    return json.loads(text, object_pairs_hook=_object_without_repeats)


def no_json(error: Exception, where: str, is_line: bool = False) -> QuantlineError:
    """What Python's own reader of JSON raised, as one message."""
    if isinstance(error, json.JSONDecodeError):
        place = where if is_line else f"{where}:{error.lineno}"
        return bad_input(f"{place}: no JSON ({error.msg})")
    if isinstance(error, RecursionError):
        return bad_input(f"{where}: is nested too deeply")
    if isinstance(error, _RepeatedKeyError):
        return bad_input(f"{where}: {error}")
    # More digits than Python converts.
    return bad_input(f"{where}: holds a number that is too large")


def _object_without_repeats(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _RepeatedKeyError(f"the key {shown(repeated)} appears twice in an object")
    return content


def _check_values(value: JsonValue, where: str, key: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_string(name, where, key)
            inner = f"{key}.{name}" if key else name
            if name not in MAY_BE_INFINITE:
                _check_values(item, where, inner)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_values(item, where, f"{key}[{number}]")
    elif isinstance(value, str):
        _check_string(value, where, key)
    elif isinstance(value, float) and not math.isfinite(value):
        raise bad_input(f"{where}: {key} is {value}, a finite number is expected")
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise bad_input(f"{where}: {key} is too large a number")


def _check_string(value: str, where: str, key: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        prefix = f"{key}: " if key else ""
        raise bad_input(
            f"{where}: {prefix}{shown(value)} holds half of a surrogate pair"
        ) from error


def validated(kind: type[BaseModel] | TypeAdapter[Any], content: Any, where: str) -> Any:
    """The content as that type; an error names the first invalid key, its value and the rule."""
    try:
        if isinstance(kind, TypeAdapter):
            return kind.validate_python(content)
        return kind.model_validate(content)
    except ValidationError as error:
        raise mismatch(error, content, where) from error
    except RecursionError as error:
        raise bad_input(f"{where}: is nested too deeply") from error


def mismatch(error: ValidationError, content: Any, where: str) -> QuantlineError:
    """A validation error as one message."""
    faults = error.errors(include_url=False, include_context=False)
    fault = faults[0]
    key = _key_path(fault["loc"], content, fault["type"] == "missing")
    more_faults = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
    reason = fault["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if fault["type"] == "missing":
        return bad_input(f"{where}: there is no {key}{more_faults}")
    if not key:
        return bad_input(f"{where}: {' '.join(reason.split())}{more_faults}")
    return bad_input(
        f"{where}: {key} is {shown(fault['input'])}; {' '.join(reason.split())}{more_faults}"
    )


def _key_path(location: tuple[int | str, ...], content: Any, is_missing: bool) -> str:
    """The key's path in the file. pydantic mixes in names of the types that it tried."""
    keys = []
    for number, key in enumerate(location):
        try:
            content = content[key]
        except (LookupError, TypeError):
            if not is_missing or number < len(location) - 1:
                continue
        keys.append(str(key))
    return shown(".".join(keys))[1:-1]


def shown(value: Any) -> str:
    """A value for a message: short, one line, printable on every terminal."""
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def shown_path(path: Path) -> str:
    """A path for a message; bytes that are no UTF-8 are escaped."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _type_text(value: Any) -> str:
    return {list: "a list", str: "a string", type(None): "null"}.get(type(value), "no object")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
