"""Writes report.json and the tables as CSV."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from conf.files.new_folder import new_folder
from conf.files.outputs import check_folder
from conf.files.write_whole import write_whole
from evaluate.report.contents import Report
from evaluate.report.machine.build import report_file
from evaluate.report.machine.schema import AnswerFile, ReportFile
from evaluate.report.show.records import GroupRecord, MedianWithInterval, Record, Speedup

NAME = "report.json"
TABLES = "tables"
SCHEMA = Path(__file__).parent / "report.schema.json"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SETUP = "setup"
FORMULA = ("=", "+", "-", "@")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of report.json, from the declared types."""
    return {"$schema": DRAFT, **TypeAdapter(ReportFile).json_schema()}


def as_json(content: ReportFile | AnswerFile) -> str:
    return json.dumps(asdict(content), indent=2, ensure_ascii=False, allow_nan=False)


def write_files(report: Report, out: Path) -> None:
    """Writes report.json, and each table that has lines to tables/NAME.csv."""
    with write_whole(out / NAME) as unfinished:
        unfinished.write_text(as_json(report_file(report)) + "\n", encoding="utf-8")
    tables: dict[str, Sequence[Record]] = dict(report.sets.by_name())
    tables["accuracy"] = report.accuracy
    check_folder("out", out / TABLES)
    with new_folder(out / TABLES):
        for name, records in tables.items():
            path = out / TABLES / f"{name}.csv"
            if records:
                _write_table(path, records)
            else:
                path.unlink(missing_ok=True)  # of an earlier report


def _write_table(path: Path, records: Sequence[Record]) -> None:
    lines = [_fields(record) for record in records]
    names = list(dict.fromkeys(name for line in lines for name in line))
    with (
        write_whole(path) as unfinished,
        unfinished.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def as_text(name: str) -> str:
    """A name that a spreadsheet takes for text, never for a formula that it computes."""
    return f"'{name}" if name.startswith(FORMULA) else name


def _fields(record: Record) -> dict[str, Any]:
    """The record with the title of its setup first, and intervals in columns of their own."""
    fields: dict[str, Any] = {}
    if isinstance(record, GroupRecord):
        fields[SETUP] = as_text(record.group)
    for name, value in vars(record).items():
        if isinstance(value, str):
            value = as_text(value)
        if isinstance(value, MedianWithInterval):
            fields |= {name: value.median, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, Speedup):
            fields |= value.content()
        elif name != "group":
            fields[name] = value
    return fields
