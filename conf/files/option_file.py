"""Reads a file of options, `config=FILE`: each becomes an option as it is typed on a command line.

So a file is checked as any option is. An option on the command line replaces that of the file.
"""

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.errors import bad_input
from conf.explain import field_type
from conf.files import strict_yaml
from conf.override_text import option_text

NAME = re.compile(r"[A-Za-z_][\w-]*")
FILE = "config"


def options_in(path: Path, schema: type[Any]) -> dict[str, str]:
    """The options of the file, as NAME=VALUE, by their names. Parts of the schema are nested."""
    file = strict_yaml.read(path)
    if not isinstance(file.content, dict):
        raise bad_input(f"{path}: must be a mapping of options to values")
    if FILE in file.content:
        raise file.error((FILE,), "a file of options names no other one")
    options = {}
    for keys, value in _leaves((), file.content, schema):
        for number, key in enumerate(keys, start=1):
            # Not options of ours: those of Hydra, and signs that change what an option does.
            if not NAME.fullmatch(key) or keys[0] == "hydra":
                raise file.error(keys[:number], f"{key!r} is no name of an option")
        try:
            options[".".join(keys)] = option_text(".".join(keys), value)
        except ValueError as error:
            raise file.error(keys, str(error)) from error
    return options


def _leaves(
    keys: tuple[str, ...], value: Any, schema: type[Any]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of the schema's fields. What is below a field, as an option of the engine that
    is a mapping, stays one value."""
    kind = field_type(".".join(keys), schema) if keys else schema
    is_part = dataclasses.is_dataclass(kind) or typing.get_origin(kind) is dict
    if isinstance(value, dict) and is_part:
        for name, entry in value.items():
            yield from _leaves((*keys, name), entry, schema)
    else:
        yield keys, value
