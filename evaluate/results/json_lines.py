"""Reads JSON lines files that may have been edited by hand, one line at a time. A file whose name
ends in .gz is packed with gzip, and only read."""

import fcntl
import gzip
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import JsonValue

from conf.errors import bad_input
from conf.files.json_files import JsonObject

LONGEST_LINE = 64 * 2**20
DEEPEST = 16
MOST_DIGITS = 30
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines with their numbers. A missing file has no lines. A line that is too long
    is cut."""
    try:
        with _opened(path) as file:
            if file.read(2) in UTF_16:
                raise bad_input(f"results={path}: is UTF-16; save it as UTF-8")
            file.seek(0)
            end = _size_between_writes(file)
            number = 0
            while end is None or file.tell() < end:
                line = rest = file.readline(LONGEST_LINE + 1)
                if not line:
                    return
                while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(LONGEST_LINE + 1)
                number += 1
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        return
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise bad_input(f"results={path}: is no whole gzip file ({error})") from error
    except OSError as error:
        raise bad_input(f"results={path}: cannot be read ({error.strerror})") from error


def is_packed(path: Path) -> bool:
    """Whether the name says that the file is packed with gzip."""
    return path.name.endswith(".gz")


def _opened(path: Path) -> BinaryIO:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise bad_input(f"results={path}: is a pipe, socket or device; give the name of a file")
    return cast(BinaryIO, gzip.open(path)) if is_packed(path) else path.open("rb")


def _size_between_writes(file: BinaryIO) -> int | None:
    """The file's size while no line is half written: writers hold a lock. None for a packed file:
    nobody writes to it, and its size is not known."""
    if isinstance(file, gzip.GzipFile):
        return None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_SH)
    try:
        return os.fstat(file.fileno()).st_size
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def content(line: bytes) -> Any:
    """The JSON value of a line. Raises ValueError with the fault."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"is longer than {LONGEST_LINE // 2**20} MiB")
    try:
        text = line.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8 (byte {error.start + 1})") from error
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_members,
            parse_int=_bounded_int,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg})") from error
    except RecursionError as error:
        raise ValueError("is nested too deep") from error
    _check(value, DEEPEST)
    if SURROGATE.search(line):  # few lines have one, and checking all text is slow
        _check_text(value)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}")


def _bounded_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"{_short(digits)} is not a number that can be stored")
    return int(digits)


def _unique_members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_short(duplicate)!r} appears twice in one object")
    return members


def _check(value: Any, depth: int) -> None:
    """Refuses deep nesting and infinite numbers: Python reads 1e400 as infinite."""
    if not isinstance(value, dict | list):
        return
    if not depth:
        raise ValueError(f"is nested deeper than {DEEPEST} levels")
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list)):
            _check(item, depth - 1)
        elif isinstance(item, float) and abs(item) == math.inf:
            name_text = _short(str(name)).encode("unicode_escape").decode()
            raise ValueError(f"{name_text} is not a number that can be stored: too large")


def _check_text(value: Any) -> None:
    """Refuses text that cannot be written back."""
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"{_short(value)!a} holds half a character (a lone surrogate)")
    elif isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_text(item)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
