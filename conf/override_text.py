"""Values as they are typed on a command line: Hydra's grammar, and a shell's.

Every command that is printed for users to paste, and every option that a program composes, is
written here. Whatever is written is read back as the same value.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from conf.entry import as_called

# Hydra reads these words as they stand, and as text.
PLAIN = re.compile(r"[A-Za-z_/][\w./:-]*", re.ASCII)
NOT_TEXT = {"true", "false", "null", "nan", "inf"}
KEY = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
# Backslashes count only before a quote, or before an interpolation.
BEFORE_QUOTE = re.compile(r"(\\*)('|$)")
INTERPOLATION = re.compile(r"(\\*)\$\{")


def value_text(value: Any) -> str:
    """The value in Hydra's grammar. Raises ValueError where the grammar has no such value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return _number(float(value))
    if isinstance(value, str | PurePath):
        return _text(str(value))
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_key(name)}:{value_text(v)}' for name, v in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return f"[{','.join(map(value_text, value))}]"
    raise ValueError(f"{value} is neither text nor number, list or mapping")


def option_text(name: str, value: Any) -> str:
    """`NAME=VALUE`, as Hydra reads it."""
    return f"{name}={value_text(value)}"


def command_text(module: str, *options: str) -> str:
    """A command of ours with these options, as users type it in a shell here."""
    return as_called(shlex.join(["python", "-m", module, *options]))


def _number(number: float) -> str:
    """The shortest text that is read as this number, and not as a whole one."""
    short = f"{number:g}" if float(f"{number:g}") == number else repr(number)
    return f"{short}.0" if short.lstrip("-").isdigit() else short


def _text(text: str) -> str:
    if PLAIN.fullmatch(text) and text.lower() not in NOT_TEXT:
        return text
    if "\n" in text or "\r" in text:
        raise ValueError(f"{text!r}: text must be one line")
    escaped = INTERPOLATION.sub(r"\1\1\\${", text)
    escaped = BEFORE_QUOTE.sub(lambda f: f[1] * 2 + f[2].replace("'", "\\'"), escaped)
    return f"'{escaped}'"


def _key(name: Any) -> str:
    if not KEY.fullmatch(str(name)):
        raise ValueError(f"{name!r} is no name of an option")
    return str(name)
