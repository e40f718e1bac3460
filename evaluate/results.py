"""`results.jsonl`: one declared record a line, each line written whole."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass
class Row:
    """One timed run, or one judgement of accuracy."""

    model: str
    """Name of the original."""
    checkpoint: str
    """`original`, or the checkpoint's recipe or folder name."""
    measure: str
    """The scenario's name, or the kind of accuracy."""
    repeat: int
    """Counts the runs of one cell from 0."""
    values: dict[str, Any]
    """What was measured; names carry their units."""
    settings: dict[str, Any]
    """The scenario and engine options that were in force."""
    device: str
    """GPU name, or cpu."""
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA


def append(path: Path, row: Row) -> None:
    """Adds a line in one write and waits for the disk: a crash leaves whole lines behind."""
    line = (json.dumps(asdict(row), allow_nan=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
