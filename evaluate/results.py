"""`results.jsonl`: one declared record a line, each line written whole, none ever changed."""

import fcntl
import json
import math
import os
import typing
from collections import defaultdict
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conf.errors import bad_input, world_fault

SCHEMA = 2
DIGITS = 7
KINDS = ("speed", "accuracy", "sensitivity", "profile", "skipped", "failed")


@dataclass
class Row:
    """One timed run, one judgement of accuracy, one profile; or why there is none."""

    kind: str
    """speed, accuracy, sensitivity, profile, skipped or failed."""
    model: str
    """Name of the original."""
    checkpoint: str
    """`original`, or the checkpoint's recipe or folder name."""
    measure: str
    """The scenario's name, or the kind of accuracy."""
    repeat: int
    """Counts the runs of one start from 0."""
    key: str
    """The same for runs that may be put together: checkpoint, load, engine, device, versions."""
    values: dict[str, Any] = field(default_factory=dict)
    """What was measured; names carry their units."""
    requests: dict[str, Any] = field(default_factory=dict)
    """Requests by the tokens that the engine counted, and by their times: handed over, first
    token, last token, and how many had the very same."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The scenario, or the accuracy's text."""
    startup: dict[str, float] = field(default_factory=dict)
    """Seconds to load, compile and capture graphs."""
    memory: dict[str, float] = field(default_factory=dict)
    """GiB of weights and at the peak, tokens that the KV cache holds, requests that they allow."""
    kernels: dict[str, str] = field(default_factory=dict)
    """The kernel that the engine chose for each scheme."""
    limit: dict[str, Any] = field(default_factory=dict)
    """What the hardware allows at best, and the share of it that was reached."""
    invalid: list[str] = field(default_factory=list)
    """Why the run must not be ranked; empty for a run that counts."""
    reason: str = ""
    """Why it was skipped or failed."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Device, driver, clocks, versions, engine options, hashes of the checkpoint."""
    start: int = 0
    """Counts the starts of the engine from 0, where each setup was started several times."""
    generation: int = 0
    """Raised by force=true; only the highest of a key counts."""
    time: str = ""
    """When it was written, in UTC."""
    schema: int = SCHEMA


NAMES = frozenset(item.name for item in fields(Row))
NEEDED = frozenset(
    item.name for item in fields(Row) if item.default is MISSING and item.default_factory is MISSING
)
TYPES = {
    item.name: typing.get_origin(hint) or hint
    for item in fields(Row)
    for hint in [typing.get_type_hints(Row)[item.name]]
}


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
    return json.dumps(rounded(asdict(row)), allow_nan=False, separators=(",", ":"))


def rounded(value: Any) -> Any:
    """With as many digits as are kept."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


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
    rows, faults = [], []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise bad_input(f"results={path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(line))
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
    return rows, faults


def _row(line: str) -> Row:
    try:
        content = json.loads(line, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else None
        raise ValueError(f"schema {found}, this version reads {SCHEMA}")
    wrong = sorted(set(content) - NAMES) or sorted(NEEDED - set(content))
    if wrong:
        raise ValueError(f"the field {wrong[0]} is unknown or missing")
    if content["kind"] not in KINDS:
        raise ValueError(f"kind is {content['kind']!r}, known are {', '.join(KINDS)}")
    row = Row(**content)
    _check_types(row)
    return row


def _check_types(row: Row) -> None:
    for name, kind in TYPES.items():
        if not isinstance(getattr(row, name), kind):
            raise ValueError(f"the field {name} is no {kind.__name__}")
    for name in ("versions", "engine_options", "variables"):
        if not isinstance(row.environment.get(name, {}), dict):
            raise ValueError(f"environment.{name} is no dict")
    if row.kind == "speed":
        for name, value in row.values.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"values.{name} is no number")
    if row.kind == "profile" and not row.values.get("window_s", 0) > 0:
        raise ValueError("values.window_s is no time")


def _refuse(constant: str) -> None:
    raise ValueError(f"holds {constant}")


def current(rows: list[Row]) -> list[Row]:
    """The rows that count: of each key, or name where there is no key, the last generation's."""

    def place(row: Row) -> tuple[str, ...]:
        return (row.key,) if row.key else (row.model, row.checkpoint, row.measure)

    last: dict[tuple[str, ...], int] = defaultdict(int)
    for row in rows:
        last[place(row)] = max(last[place(row)], row.generation)
    return [row for row in rows if row.generation == last[place(row)]]
