"""results.jsonl: whole lines, whatever happens."""

import json
import multiprocessing
from pathlib import Path

import pytest

from evaluate.results import Row, append


def row(number: int, size: int = 1) -> Row:
    return Row("tiny", "original", "base", number, {"text": "x" * size}, {}, "cpu")


def write_many(path: Path, start: int) -> None:
    for number in range(start, start + 50):
        append(path, row(number, size=5000))


def test_two_writers_leave_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, start)) for start in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    repeats = [json.loads(line)["repeat"] for line in path.read_text().splitlines()]
    assert sorted(repeats) == [*range(50), *range(100, 150)]


def test_a_number_that_is_none_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append(path, row(0))
    with pytest.raises(ValueError):
        append(path, Row("m", "c", "base", 0, {"latency_s": float("nan")}, {}, "cpu"))
    assert len(path.read_text().splitlines()) == 1
