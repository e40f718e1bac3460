"""Reads the records of a file of traffic: JSON lines, a JSON list or a table in CSV, packed with
gzip or not."""

import gzip
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import check_regular, no_json, parse_object, shown_path
from evaluate.measure.traffic.record import Record, decoded
from evaluate.measure.traffic.table import rows

LARGEST_FILE = 1 << 31  # bytes, unpacked
LONGEST_LINE = 1 << 27  # bytes
SPACE = " \t\r\n"
BOM = b"\xef\xbb\xbf"  # Windows writes it
GZIP = b"\x1f\x8b"
TABLE = ".csv"
SUFFIXES = (TABLE, ".json", ".jsonl")


def records(path: Path, may_be_cut: bool = False) -> Iterator[Record]:
    """The records of a file. `may_be_cut` takes what precedes the place where a JSON list breaks
    off."""
    check_regular(Path(os.path.realpath(path)))  # a data set is often a link to a shared disk
    _check_size(path.stat().st_size, path)
    try:
        with _opened(path) as file:
            begin = len(BOM) if file.read(len(BOM)) == BOM else 0
            file.seek(begin)
            first = file.read(1)
            while first and first in SPACE.encode():
                first = file.read(1)
            if not first:
                raise bad_input(f"{shown_path(path)}: is empty")
            file.seek(begin)
            if first == b"[":
                content = file.read(LARGEST_FILE + 1)
                _check_size(len(content), path)
                # A byte that is not UTF-8 makes one record bad, and not the file.
                text = content.decode(errors="surrogateescape")
                yield from _listed(text, path, may_be_cut)
            elif _is_table(path):
                yield from rows(_lines(file, path), path)
            else:
                yield from _of_lines(file, path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise bad_input(f"{shown_path(path)}: is no whole gzip file ({error})") from error


def _is_table(path: Path) -> bool:
    """Whether .csv is the last suffix that tells a kind of file. Others follow in a.csv.1."""
    kinds = [suffix.lower() for suffix in path.suffixes if suffix.lower() in SUFFIXES]
    return kinds[-1:] == [TABLE]


def _opened(path: Path) -> BinaryIO:
    """The file, unpacked if it begins as gzip writes."""
    with path.open("rb") as file:
        is_packed = file.read(len(GZIP)) == GZIP
    return cast(BinaryIO, gzip.open(path)) if is_packed else path.open("rb")


def _check_size(size: int, path: Path) -> None:
    if size > LARGEST_FILE:
        raise bad_input(f"{shown_path(path)}: has {size:,} bytes, more than {LARGEST_FILE:,}")


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines with their places."""
    size = 0
    for number in itertools.count(1):
        line, where = file.readline(LONGEST_LINE + 1), f"{shown_path(path)}:{number}"
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise bad_input(f"{where}: the line is too long")
        size += len(line)
        _check_size(size, path)  # a packed file is larger than it looks
        yield where, line


def _of_lines(file: BinaryIO, path: Path) -> Iterator[Record]:
    for where, line in _lines(file, path):
        if not line.strip():
            continue
        try:
            yield Record(where, parse_object(decoded(line, where), where, is_line=True))
        except QuantlineError as error:
            yield Record(where, {}, error)


def _listed(text: str, path: Path, may_be_cut: bool) -> Iterator[Record]:
    """The objects of a JSON list, one by one, so that those before a cut can be read."""
    decoder, place = json.JSONDecoder(), text.index("[") + 1
    for number in itertools.count(1):
        where = f"{shown_path(path)}: record {number}"
        place = _next_place(text, place)
        if text[place : place + 1] == "]":
            _check_end(text, place + 1, path)
            return
        if number > 1 and text[place : place + 1] == ",":
            place = _next_place(text, place + 1)
        elif number > 1 and place < len(text):
            raise bad_input(f"{where}: no JSON (there is no comma before it)")
        begin = place
        try:
            content, place = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            if may_be_cut:
                return
            reason = "the file is cut off" if begin >= len(text.rstrip()) else "no JSON"
            raise bad_input(f"{where}: {reason} ({str(error).splitlines()[0]})") from error
        except (ValueError, RecursionError) as error:
            raise no_json(error, where, is_line=True) from error
        if not may_be_cut or not isinstance(content, dict):  # ours is known by its hash
            try:
                own = decoded(text[begin:place].encode(errors="surrogateescape"), where)
                content = parse_object(own, where, is_line=True)
            except QuantlineError as fault:
                yield Record(where, {}, fault)
                continue
        yield Record(where, content)


def _next_place(text: str, place: int) -> int:
    """The place of the next character that is no space."""
    while place < len(text) and text[place] in SPACE:
        place += 1
    return place


def _check_end(text: str, place: int, path: Path) -> None:
    if text[place:].strip(SPACE):
        raise bad_input(f"{shown_path(path)}: there is more after the end of the list")
