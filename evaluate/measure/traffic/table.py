"""Tables in CSV: their rows, and which cells are numbers."""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import JsonValue

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject, shown, shown_path
from evaluate.measure.traffic.formats.base import TrafficFormat
from evaluate.measure.traffic.record import Record, decoded

LONGEST_CELL = 1 << 27  # characters; csv's own limit is shorter than a long prompt
LONGEST_NUMBER = 400  # characters
WHOLE = re.compile(r"[-+]?\d{1,38}")  # nanoseconds since 1970 have 19 digits
DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def rows(lines: Iterable[tuple[str, bytes]], path: Path) -> Iterator[Record]:
    """The rows below the header. Their values are texts: which are numbers, the format tells."""
    faults: list[QuantlineError] = []
    # Strict: else a quotation mark that is not closed takes the rest of the file into one cell.
    reader = csv.reader(_decoded(lines, faults), strict=True)
    header: list[str] = []
    while True:
        first = reader.line_num + 1
        where = f"{shown_path(path)}:{first}"
        try:
            row = _next_row(reader)
        except csv.Error as error:
            no_csv = bad_input(f"{where}: no CSV ({error})")
            if not header or reader.line_num > first:  # which line is wrong is not known
                raise no_csv from error
            faults.clear()
            yield Record(where, {}, no_csv)
            continue
        fault = faults.pop() if faults else None
        if row is None:
            return
        if not any(cell.strip() for cell in row):
            continue
        if header:
            yield _record(where, header, row, fault)
        elif fault is not None:
            raise fault
        else:
            header = _header(row, where)


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row, whose cells may be long. The limit is one for all readers of the process."""
    usual = csv.field_size_limit(LONGEST_CELL)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(usual)


def _decoded(lines: Iterable[tuple[str, bytes]], faults: list[QuantlineError]) -> Iterator[str]:
    for where, line in lines:
        try:
            yield decoded(line, where)
        except QuantlineError as fault:
            faults[:] = faults or [fault]
            yield line.decode(errors="replace")


def _header(cells: list[str], where: str) -> list[str]:
    """The names of the columns. pandas writes its index without one."""
    names = [name or f"column {number}" for number, name in enumerate(cells, start=1)]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise bad_input(f"{where}: the column {shown(repeated[0])} appears twice")
    return names


def _record(where: str, header: list[str], row: list[str], fault: QuantlineError | None) -> Record:
    if fault is None and any(row[len(header) :]):
        fault = bad_input(f"{where}: has more cells than columns")
    if fault is not None:
        return Record(where, {}, fault)
    cells = zip(header, row, strict=False)  # a row may end early
    return Record(where, {name: cell for name, cell in cells if cell}, is_row=True)


class Cells:
    """The cells of a table, as its format reads them. A table does not say which are numbers."""

    def __init__(self, kind: TrafficFormat) -> None:
        self.kind = kind
        self._is_text: dict[str, bool] = {}
        """For each column."""
        self._only_numbers: dict[str, bool] = {}
        """For each column of prompts."""

    def typed(self, content: JsonObject) -> JsonObject:
        """A row with its numbers."""
        return {name: self._typed(name, cell) for name, cell in content.items()}

    def _typed(self, column: str, cell: JsonValue) -> JsonValue:
        assert isinstance(cell, str)
        number = _number(cell)
        if column not in self._is_text:
            self._is_text[column] = self.kind.reads_text(column)
        if not self._is_text[column]:
            return cell if number is None else number
        if self.kind.text_key:
            is_number = self._only_numbers.get(column, True) and number is not None
            self._only_numbers[column] = is_number
        return cell

    def check(self, path: Path) -> None:
        """Raises for a column of prompts that holds lengths: its numbers would be sent as texts."""
        for column, only_numbers in self._only_numbers.items():
            if only_numbers:
                raise bad_input(
                    f"{shown_path(path)}: the format {self.kind.name} reads the column "
                    f"{shown(column)} as a text, but it holds only numbers; call lengths of "
                    "prompts input_tokens"
                )


def _number(cell: str) -> int | float | None:
    if WHOLE.fullmatch(cell):
        return int(cell)
    if len(cell) > LONGEST_NUMBER or not DECIMAL.fullmatch(cell):
        return None
    number = float(cell)
    return number if math.isfinite(number) else None
