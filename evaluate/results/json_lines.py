"""Files of JSON lines that anyone may have edited: each line is read on its own."""

import fcntl
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from conf.errors import bad_input

LONGEST_LINE = 64 * 2**20
DEEPEST = 16
MOST_DIGITS = 30
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, without those that are empty; none of a file that is not
    there. One that is too long comes cut short."""
    try:
        with path.open("rb") as file:
            if file.read(2) in UTF_16:
                raise bad_input(f"results={path}: is UTF-16; save it as UTF-8")
            file.seek(0)
            end = _whole_size(file)
            number = 0
            while file.tell() < end:
                line = rest = file.readline(LONGEST_LINE + 1)
                while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(LONGEST_LINE + 1)
                number += 1
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise bad_input(f"results={path}: cannot be read ({error.strerror})") from error


def _whole_size(file: BinaryIO) -> int:
    """The size when no line is half written: those who append hold a lock while they write."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_SH)
    try:
        return os.fstat(file.fileno()).st_size
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def content(line: bytes) -> Any:
    """The JSON value of a line. Raises ValueError with what is wrong with it."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"is longer than {LONGEST_LINE // 2**20} MiB")
    try:
        text = line.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8 (byte {error.start + 1})") from error
    try:
        found = json.loads(
            text,
            parse_constant=_constant,
            object_pairs_hook=_object,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg})") from error
    except RecursionError as error:
        raise ValueError("is nested too deep") from error
    _check(found, DEEPEST)
    if SURROGATE.search(line):  # few lines have one, and looking at all text takes long
        _check_text(found)
    return found


def _constant(name: str) -> None:
    raise ValueError(f"holds {name}")


def _int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"{_short(digits)} is no number that can be kept")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_short(twice)!r} stands twice in one object")
    return found


def _check(value: Any, depth: int) -> None:
    """Nesting that can be read, and numbers that can be kept: 1e400 is read as infinite."""
    if not isinstance(value, dict | list):
        return
    if not depth:
        raise ValueError(f"is nested deeper than {DEEPEST} levels")
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, (dict, list)):
            _check(part, depth - 1)
        elif isinstance(part, float) and abs(part) == math.inf:
            shown = _short(str(name)).encode("unicode_escape").decode()
            raise ValueError(f"{shown} is no number that can be kept: too large")


def _check_text(value: Any) -> None:
    """No text that cannot be written again."""
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"{_short(value)!a} holds half a character (a lone surrogate)")
    elif isinstance(value, dict | list):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_text(part)


def _short(words: str) -> str:
    return words if len(words) <= 40 else f"{words[:37]}..."
