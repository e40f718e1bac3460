"""`results.jsonl`: one row per line, appended in one write and never changed."""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.errors import bad_input, environment_failure
from evaluate.results.json_lines import content, lines
from evaluate.results.row_consistency import contradiction
from evaluate.results.rows import (
    FIELDS,
    KINDS,
    NEEDED,
    SCHEMA,
    TASK_PREFIXES,
    QuickAccuracyRow,
    Row,
    TaskAccuracyRow,
    line_content,
)

MOST_FAULTS = 1000  # without one good line
LONGEST_SHOWN = 60


def append(path: Path, row: Row) -> None:
    """Adds a line in one locked write and waits for the disk. If a crash left the last line
    unfinished, a newline ends it first. A line that does not fit on the disk is removed again."""
    append_lines(path, (_line_text(row) + "\n").encode())


def append_lines(path: Path, text: bytes) -> None:
    """Adds lines as `append` does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise environment_failure(
            f"results={path}: cannot be written ({error.strerror})"
        ) from error
    try:
        with suppress(OSError):  # a file system without locks; a shard has one writer
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            text = b"\n" + text
        _write_or_take_back(descriptor, text, size, path)
    finally:
        os.close(descriptor)


def _line_text(row: Row) -> str:
    """The row as compact JSON, with digits limited to the clock's precision."""
    return json.dumps(line_content(row), allow_nan=False, separators=(",", ":"))


def _write_or_take_back(descriptor: int, line: bytes, size: int, path: Path) -> None:
    try:
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError(28, "No space left on device")
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, size)
        raise environment_failure(
            f"results={path}: cannot be written ({error.strerror})"
        ) from error


def read(path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a file, and one message for each line that is not a valid row."""
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
    """The row that a JSON value holds. Raises ValueError with the reason if it is not a row."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA or not isinstance(schema, int):
        raise ValueError(f"schema {_short_text(schema)}, this version reads {SCHEMA}")
    field_faults = sorted(set(content) - set(FIELDS)) or sorted(NEEDED - set(content))
    if field_faults:
        raise ValueError(f"the field {_short_text(field_faults[0])[1:-1]} is unknown or missing")
    try:
        row = _type_of(content["kind"], content["measure"]).model_validate(content)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from error
    if fault := contradiction(row):
        raise ValueError(fault)
    return row


def _type_of(kind: Any, measure: Any) -> type[Row]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {_short_text(kind)}; choose one of {', '.join(KINDS)}")
    if kind != "accuracy":
        return KINDS[kind]
    is_task = isinstance(measure, str) and measure.startswith(TASK_PREFIXES)
    return TaskAccuracyRow if is_task else QuickAccuracyRow


def misfit(content: Any) -> str:
    """Why a JSON value is not a valid row; empty for a valid one."""
    try:
        row_of(content)
    except ValueError as error:
        return str(error)
    return ""


def first_fault(error: ValidationError) -> str:
    """The first validation error in one line: the field, its value and the allowed range."""
    first = error.errors(include_url=False)[0]
    location = ".".join(str(name) for name in first["loc"] if name != "[key]")
    location = location.encode("unicode_escape").decode()
    expected = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    expected = expected.partition(" or instance of ")[0]
    if first["type"] == "missing":
        return f"the field {location} is missing"
    return f"{location} is {_short_text(first['input'])}: {expected}"


def _short_text(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
