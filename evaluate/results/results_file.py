"""`results.jsonl`: one row a line, each line written whole, none ever changed."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.errors import bad_input, world_fault
from evaluate.results.json_lines import content, lines
from evaluate.results.row_consistency import contradiction
from evaluate.results.rows import (
    FIELDS,
    KINDS,
    NEEDED,
    SCHEMA,
    TASK,
    QuickAccuracyRow,
    Row,
    TaskAccuracyRow,
    line_content,
)

MOST_FAULTS = 1000  # without one good line
LONGEST_SHOWN = 60


def append(path: Path, row: Row) -> None:
    """Adds a line in one locked write and waits for the disk. A line that an earlier crash cut
    short is closed first, and one that does not fit on the disk is taken back."""
    line = (_line(row) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise world_fault(f"results={path}: cannot be written ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        _write_or_take_back(descriptor, line, size, path)
    finally:
        os.close(descriptor)


def _line(row: Row) -> str:
    """Without spaces, and with as many digits as a clock is worth: files are kept for years."""
    return json.dumps(line_content(row), allow_nan=False, separators=(",", ":"))


def _write_or_take_back(descriptor: int, line: bytes, size: int, path: Path) -> None:
    try:
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError(28, "No space left on device")
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, size)
        raise world_fault(f"results={path}: cannot be written ({error.strerror})") from error


def read(path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a file, and for each line that is none, what is wrong with it."""
    rows: list[Row] = []
    faults: list[str] = []
    for number, line in lines(path):
        try:
            rows.append(row_of(content(line)))
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
            if not rows and len(faults) == MOST_FAULTS:
                raise bad_input(f"results={path}: is no file of results ({faults[0]})") from error
    return rows, faults


def row_of(content: Any) -> Row:
    """The row that a JSON value holds. Raises ValueError with what keeps it from being one."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA or not isinstance(schema, int):
        raise ValueError(f"schema {_shown(schema)}, this version reads {SCHEMA}")
    wrong = sorted(set(content) - set(FIELDS)) or sorted(NEEDED - set(content))
    if wrong:
        raise ValueError(f"the field {_shown(wrong[0])[1:-1]} is unknown or missing")
    try:
        row = _type_of(content["kind"], content["measure"]).model_validate(content)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from error
    if fault := contradiction(row):
        raise ValueError(fault)
    return row


def _type_of(kind: Any, measure: Any) -> type[Row]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {_shown(kind)}, known are {', '.join(KINDS)}")
    if kind != "accuracy":
        return KINDS[kind]
    is_task = isinstance(measure, str) and measure.startswith(TASK)
    return TaskAccuracyRow if is_task else QuickAccuracyRow


def misfit(content: Any) -> str:
    """What keeps a JSON value from being a row; empty for a row."""
    try:
        row_of(content)
    except ValueError as error:
        return str(error)
    return ""


def first_fault(error: ValidationError) -> str:
    """The first thing that pydantic found, in one line: the field, its value, and the range."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    where = where.encode("unicode_escape").decode()
    expected = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    expected = expected.partition(" or instance of ")[0]
    if first["type"] == "missing":
        return f"the field {where} is missing"
    return f"{where} is {_shown(first['input'])}: {expected}"


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
