"""Ranges and choices of option values, declared in the metadata of each field; help prints them.

A dataclass field carries its rule: `samples: int = field(default=64, metadata=within(1, 1000))`.
`check_values` walks a composed config before its typed objects are made, so that a message has
the full name of the option.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import MISSING

from conf.errors import nearest
from conf.explain import without_none

RANGE, CHOICES, NOT_EMPTY, TEXT = "range", "choices", "not_empty", "text"
HIDDEN = "hidden"
# Characters that no file name and no JSON record can hold.
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
SEED_MOST = 2**32 - 1  # numpy takes no larger seed
MASK_WIDTH = 4  # neighbours in a row of a 2:4 mask, two of them zero
TOKENS_MOST = 2**27
MILLISECONDS_MOST = 1e9


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field takes."""

    least: float
    most: float
    above_least: bool = False
    """Whether `least` itself is left out."""

    def __contains__(self, value: float) -> bool:
        # Written so that NaN, for which every comparison is false, is outside.
        return value <= self.most and (
            value > self.least if self.above_least else value >= self.least
        )

    def __str__(self) -> str:
        if self.least == self.most:
            return _plain(self.least)
        lower = "more than" if self.above_least else "at least"
        return f"{lower} {_plain(self.least)} and at most {_plain(self.most)}"

    @property
    def short(self) -> str:
        """As help prints it."""
        if self.above_least:
            return f"above {_plain(self.least)}, at most {_plain(self.most)}"
        return f"{_plain(self.least)} to {_plain(self.most)}"


Metadata = dict[str, Range | tuple[str, ...] | bool | str]


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def within(least: float, most: float) -> Metadata:
    """Metadata: a number from `least` to `most`; in a list or mapping, each of its numbers."""
    return {RANGE: Range(least, most)}


def above(least: float, most: float) -> Metadata:
    """Metadata: a number above `least` and up to `most`."""
    return {RANGE: Range(least, most, above_least=True)}


def choices(*known: str) -> Metadata:
    """Metadata: one of these words; in a list, each entry."""
    return {CHOICES: known}


def not_empty() -> Metadata:
    """Metadata: a text that is not blank; in a list, each entry."""
    return {NOT_EMPTY: True}


def not_an_option() -> Metadata:
    """Metadata: a field that the program sets itself, and help does not show."""
    return {HIDDEN: True}


def documented(text: str) -> Metadata:
    """Metadata: the text that help prints, for a field whose text is computed."""
    return {TEXT: text}


def range_of(schema: type[Any], name: str) -> Range:
    """The range that a field declares."""
    declared = schema.__dataclass_fields__[name].metadata[RANGE]
    assert isinstance(declared, Range)
    return declared


def range_text(metadata: Mapping[str, Any]) -> str:
    """A field's range as help prints it; empty without one."""
    return metadata[RANGE].short if RANGE in metadata else ""


def check_values(schema: type[Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Raises ValueError for the first invalid value, those of nested dataclasses included."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        value, path = values.get(field.name), f"{prefix}{field.name}"
        if value is None or value == MISSING:
            continue
        hint = without_none(hints[field.name])
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            check_values(typing.cast(type, hint), value, f"{path}.")
        elif typing.get_origin(hint) is dict and dataclasses.is_dataclass(typing.get_args(hint)[1]):
            for name, entry in value.items():
                check_values(typing.get_args(hint)[1], entry or {}, f"{path}.{name}.")
        elif typing.get_origin(hint) is list and dataclasses.is_dataclass(typing.get_args(hint)[0]):
            for number, entry in enumerate(value):
                check_values(typing.get_args(hint)[0], entry or {}, f"{path}[{number}].")
        else:
            _check_entries(path, value, hint)
            check_value(path, value, field.metadata)


def _check_entries(path: str, value: Any, hint: Any) -> None:
    """Raises where a list of words or numbers holds a list or a mapping."""
    if typing.get_origin(hint) is list and typing.get_args(hint)[0] in (str, int, float):
        for entry in value:
            if isinstance(entry, list | tuple | Mapping):
                raise ValueError(f"{path}={value}: {entry} is a list or mapping inside the list")


def check_value(path: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raises ValueError where the value, or a value inside it, breaks the field's rule."""
    for name, leaf in _leaves(path, value):
        if isinstance(leaf, str):
            _check_text(name, leaf, metadata)
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            _check_number(name, leaf, metadata.get(RANGE))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(path, item)
    else:
        yield path, value


def _check_text(path: str, value: str, metadata: Mapping[str, Any]) -> None:
    if UNSTORABLE.search(value):
        raise ValueError(f"{path}={value!r}: holds a character that cannot be stored")
    if NOT_EMPTY in metadata and not value.strip():
        raise ValueError(f"{path}={value!r}: must not be empty")
    known = metadata.get(CHOICES)
    if known and value not in known:
        raise ValueError(
            f"{path}={value}: choose one of {', '.join(known)}.{nearest(value, known)}"
        )


def _check_number(path: str, value: float, allowed: Range | None) -> None:
    if allowed is not None and value not in allowed:
        raise ValueError(f"{path}={value}: must be {allowed}")
    if not math.isfinite(value):
        raise ValueError(f"{path}={value}: must be a finite number")
