"""Reads and writes the record of a job."""

import json
from dataclasses import asdict
from pathlib import Path

from conf.errors import writing
from conf.files.write_whole import write_whole
from conf.launch.task import Record


def read_record(path: Path) -> Record | None:
    """The record; None without one that can be read: the job then counts as not begun."""
    if not path.is_file():
        return None
    # Imported here: a job's first start finds no record, and pydantic's import takes 0.15 s.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Record).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def has_recorded_end(path: Path) -> bool:
    """Whether the job has recorded that it is done or failed."""
    record = read_record(path)
    return record is not None and record.state != "running"


def write_record(path: Path, record: Record) -> None:
    with writing(path), write_whole(path) as unfinished:
        unfinished.write_text(json.dumps(asdict(record), indent=1) + "\n")
