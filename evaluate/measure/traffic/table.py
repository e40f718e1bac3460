"""Tables in CSV: their rows, and which cells are numbers."""

import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import JsonValue

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject, shown, shown_path
from evaluate.measure.traffic.conversation import Conversation
from evaluate.measure.traffic.formats.base import TrafficFormat, whole
from evaluate.measure.traffic.record import Record, decoded

LONGEST_CELL = 1 << 27  # characters; csv's own limit is shorter than a long prompt
LONGEST_NUMBER = 400  # characters
WHOLE = re.compile(r"[-+]?\d{1,38}")  # nanoseconds since 1970 have 19 digits
SPACE_BEFORE = re.compile(r", +\S")
QUOTED_AFTER_SPACE = re.compile(r', +"(?!")')
"""Within quotation marks, one is written as two."""
QUOTED = re.compile(r'("(?:[^"]+|"")*+") *(?=[,\r\n]|\Z)')
LIKE_AN_INPUT_LENGTH = re.compile(r"(?=.*(input|prompt)).*(tok|len)", re.IGNORECASE)
DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def rows(lines: Iterable[tuple[str, bytes]], path: Path) -> Iterator[Record]:
    """The rows below the header. Their values are texts: which are numbers, the format tells."""
    source = _Source(lines)
    reader = _Reader(source, skips_spaces=True)
    header: list[str] = []
    while True:
        source.begin_row()
        where = f"{shown_path(path)}:{source.first}"
        try:
            row = reader.next_row()
        except csv.Error as error:
            no_csv = bad_input(f"{where}: no CSV ({error})")
            if not header or len(source.row) > 1:  # which line is wrong is not known
                raise no_csv from error
            yield Record(where, {}, no_csv)
            continue
        fault = source.fault
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
            has_spaces = bool(SPACE_BEFORE.search("".join(source.row)))
            has_spaces = has_spaces or bool(QUOTED_AFTER_SPACE.search(source.peeked()))
            reader = _Reader(source, skips_spaces=has_spaces)


class _Source:
    """The lines of a table, decoded."""

    def __init__(self, lines: Iterable[tuple[str, bytes]]) -> None:
        self._lines = iter(lines)
        self._waiting: list[tuple[str, bytes]] = []
        self.first = 1
        """The number of the line with which the row begins."""
        self.row: list[str] = []
        """The lines of the row so far."""
        self.fault: QuantlineError | None = None
        """Of one of these lines."""

    def begin_row(self) -> None:
        self.first += len(self.row)
        self.row, self.fault = [], None

    def peeked(self) -> str:
        """The line that follows; empty at the end."""
        self._waiting += list(itertools.islice(self._lines, 1))
        return self._waiting[0][1].decode(errors="replace") if self._waiting else ""

    def __iter__(self) -> "_Source":
        return self

    def __next__(self) -> str:
        where, line = self._waiting.pop() if self._waiting else next(self._lines)
        try:
            text = decoded(line, where)
        except QuantlineError as fault:
            self.fault = self.fault or fault
            text = line.decode(errors="replace")
        self.row.append(text)
        return text


class _Reader:
    """Reads rows. Strict: else a quotation mark that is not closed takes the rest of the file into
    one cell."""

    def __init__(self, source: _Source, skips_spaces: bool) -> None:
        self._source = source
        self._skips_spaces = skips_spaces
        self._rows = csv.reader(source, strict=True, skipinitialspace=skips_spaces)

    def next_row(self) -> list[str] | None:
        """The next row, whose cells may be long. The limit is one for all readers of the
        process."""
        usual = csv.field_size_limit(LONGEST_CELL)
        try:
            return next(self._rows, None)
        except csv.Error:
            row = self._spaced_row()
            if row is None:
                raise
            return row
        finally:
            csv.field_size_limit(usual)

    def _spaced_row(self) -> list[str] | None:
        """A row with spaces behind quoted cells, which csv refuses. They belong to the cells. None
        where there is more behind them."""
        text = "".join(self._source.row)
        try:
            self._parsed(QUOTED.sub(lambda match: match[1], text), strict=True)
        except csv.Error:
            return None
        return self._parsed(text, strict=False)

    def _parsed(self, text: str, strict: bool) -> list[str]:
        return next(csv.reader([text], strict=strict, skipinitialspace=self._skips_spaces))


def _header(cells: list[str], where: str) -> list[str]:
    """The names of the columns. pandas writes its index without one."""
    names = [name.strip() or f"column {number}" for number, name in enumerate(cells, start=1)]
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
        self._numbers: dict[str, int] = {}
        """For each column of prompts that holds only numbers, how many."""
        self._has_input_lengths = False
        """Whether another column has the lengths of prompts."""

    def typed(self, content: JsonObject) -> JsonObject:
        """A row with its numbers."""
        cells = {name: self._typed(name, cell) for name, cell in content.items()}
        return {name: cell for name, cell in cells.items() if cell != ""}

    def _typed(self, column: str, cell: JsonValue) -> JsonValue:
        assert isinstance(cell, str)
        if column not in self._is_text:
            self._add(column)
        number = _number(cell)
        if not self._is_text[column]:
            return cell.strip() if number is None else number
        if column in self._numbers:
            if number is None:
                del self._numbers[column]
            else:
                self._numbers[column] += 1
        return cell

    def _add(self, column: str) -> None:
        self._is_text[column] = self.kind.reads_text(column)
        if self.kind.reads_prompt(column):
            self._numbers[column] = 0
        if LIKE_AN_INPUT_LENGTH.match(column[:LONGEST_NUMBER]):
            self._has_input_lengths = True

    def check(self, path: Path, conversations: list[Conversation]) -> None:
        """Raises for a column of prompts that holds lengths: its numbers would be sent as texts. A
        single number, beside the length of its answer, is no column of lengths."""
        if self._has_input_lengths or not self._numbers:
            return
        is_drawn = any(turn.answer is None for each in conversations for turn in each.turns)
        for column, count in self._numbers.items():
            if count > 1 or (count and is_drawn):
                raise bad_input(
                    f"{shown_path(path)}: the format {self.kind.name} reads the column "
                    f"{shown(column)} as a text, but it holds only numbers; call lengths of "
                    "prompts input_tokens"
                )


def _number(cell: str) -> JsonValue:
    """The number in a cell; None where there is none."""
    cell = cell.strip()
    if WHOLE.fullmatch(cell):
        return int(cell)
    if len(cell) > LONGEST_NUMBER or not DECIMAL.fullmatch(cell):
        return None
    number = float(cell)
    return whole(number) if math.isfinite(number) else None
