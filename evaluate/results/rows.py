"""`results.jsonl`: one declared record a line, each line written whole, none ever changed."""

import fcntl
import json
import os
from collections import defaultdict
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.errors import bad_input, world_fault
from evaluate.results.json_lines import content, lines
from evaluate.results.row_consistency import contradiction
from evaluate.results.row_types import TYPES

SCHEMA = 2
DIGITS = 7
KINDS = tuple(TYPES)
MOST_FAULTS = 1000  # without one good line
LONGEST_SHOWN = 60


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
    return json.dumps(kept(row), allow_nan=False, separators=(",", ":"))


def rounded(value: Any) -> Any:
    """As it is kept: with fewer digits, and without halves of characters, which names that are
    no UTF-8 leave in Python's strings and which cannot be read again."""
    if isinstance(value, dict):
        return {rounded(name): rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="replace").decode()
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
    """The rows of a file, and for each line that is none, what is wrong with it. Whoever reads
    rows may rely on what evaluate.results.row_types declares."""
    rows, faults = [], []
    for number, line in lines(path):
        try:
            rows.append(_row(content(line)))
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
            if not rows and len(faults) == MOST_FAULTS:
                raise bad_input(f"results={path}: is no file of results ({faults[0]})") from error
    return rows, faults


def _row(found: Any) -> Row:
    wrong = misfit(found)
    if wrong:
        raise ValueError(wrong)
    return Row(**found)


def kept(row: Row) -> dict[str, Any]:
    """A row as it stands in a file."""
    found: dict[str, Any] = rounded(asdict(row))
    return found


def misfit(found: Any) -> str:
    """What keeps a JSON value from being a row; empty for a row."""
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA or not isinstance(schema, int):
        return f"schema {_shown(schema)}, this version reads {SCHEMA}"
    wrong = sorted(set(found) - NAMES) or sorted(NEEDED - set(found))
    if wrong:
        return f"the field {_shown(wrong[0])[1:-1]} is unknown or missing"
    kind = found["kind"]
    if kind not in KINDS:
        return f"kind is {_shown(kind)}, known are {', '.join(KINDS)}"
    try:
        TYPES[kind].model_validate(found)
    except ValidationError as error:
        return _first(error)
    return contradiction(found)


def _first(error: ValidationError) -> str:
    """The first thing that pydantic found, in one line: the field, its value, and the range."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    where = where.encode("unicode_escape").decode()
    words = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    words = words.partition(" or instance of ")[0]
    if first["type"] == "missing":
        return f"the field {where} is missing"
    return f"{where} is {_shown(first['input'])}: {words}"


def _shown(value: Any) -> str:
    words = repr(value) if isinstance(value, str) else str(value)
    words = words.encode("ascii", "backslashreplace").decode()
    return words if len(words) <= LONGEST_SHOWN else f"{words[:LONGEST_SHOWN]}..."


def current(rows: list[Row]) -> list[Row]:
    """The rows that count: of each key, or name where there is no key, the last generation's."""

    def place(row: Row) -> tuple[str, ...]:
        return (row.key,) if row.key else (row.model, row.checkpoint, row.measure)

    last: dict[tuple[str, ...], int] = defaultdict(int)
    for row in rows:
        last[place(row)] = max(last[place(row)], row.generation)
    return [row for row in rows if row.generation == last[place(row)]]
