"""Reads and writes the record of a job."""

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from conf.errors import writing
from conf.files.write_whole import write_whole
from conf.launch.task import Record

READER = TypeAdapter(Record)


def read_record(path: Path) -> Record | None:
    """The record; None without one that can be read: the job then counts as not begun."""
    if not path.is_file():
        return None
    try:
        return READER.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(path: Path, record: Record) -> None:
    with writing(path), write_whole(path) as unfinished:
        unfinished.write_text(json.dumps(asdict(record), indent=1) + "\n")
