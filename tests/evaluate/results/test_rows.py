"""results.jsonl: whole lines, whatever happens."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from evaluate.results.results_file import append, read
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import SCHEMA, Row, SpeedRow, current, line_content


def row(number: int, size: int = 1) -> Row:
    return SpeedRow(
        model="tiny",
        checkpoint="original",
        measure="base",
        repeat=number,
        key="key",
        reason="x" * size,
    )


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
    rows, faults = read(path)
    assert faults == []
    assert sorted(row.repeat for row in rows) == [*range(50), *range(100, 150)]


def test_a_number_that_is_none_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append(path, row(0))
    strange = row(1)
    strange.values = SpeedValues.model_construct(latency_s=float("nan"))
    with pytest.raises(ValueError):
        append(path, strange)
    assert len(path.read_text().splitlines()) == 1


def test_a_line_cut_short_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append(path, row(0))
    with path.open("a") as file:
        file.write('{"kind": "speed", "mod')
    append(path, row(1))
    rows, faults = read(path)
    assert [found.repeat for found in rows] == [0, 1]
    assert len(faults) == 1
    assert f"{path}:2: no JSON" in faults[0]


def test_a_full_disk_takes_the_line_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    append(path, row(0))
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    with pytest.raises(QuantlineError, match="No space left") as error:
        append(path, row(1))
    assert error.value.exit_code == 3
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 1}, f"schema 1, this version reads {SCHEMA}"),
        ({"colour": "red"}, "the field colour is unknown"),
        ({"kind": "gossip"}, "kind is 'gossip'"),
        ({"values": {"latency_s": float("nan")}}, "holds NaN"),
    ],
)
def test_a_line_of_another_make_is_named(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(line_content(row(0)) | change) + "\n")
    append(path, row(1))
    rows, faults = read(path)
    assert [found.repeat for found in rows] == [1]
    assert words in faults[0]
    assert f"{path}:1:" in faults[0]


def test_force_makes_older_runs_count_no_more(tmp_path: Path) -> None:
    old, new, other = row(0), row(0), row(0)
    new.generation, other.key = 1, "another"
    assert current([old, other, new]) == [other, new]


def test_there_is_nothing_in_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == ([], [])
