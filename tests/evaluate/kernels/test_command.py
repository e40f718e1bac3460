"""The command `evaluate.kernels`: bad input and tables, on a machine without a GPU."""

import os
from pathlib import Path

import pytest

from evaluate.kernels.cases import cases
from evaluate.results.results_file import append
from tests.conftest import Run
from tests.evaluate.kernels import made

SHAPE = ["in_features=[1024]", "out_features=[1024]"]


@pytest.fixture
def odd_files(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    (tmp_path / "tables" / "kernels.md").mkdir(parents=True)
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    os.mkfifo(tmp_path / "pipe.jsonl")
    return tmp_path


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("out=file", "out=file: is no folder"),
        ("out=file/x", "file is no folder"),
        ("out=tables", "out=tables/kernels.md: is a folder"),
        ("results=kernels/kernels.csv", "kernels/kernels.csv is the results file"),
        ("results=loop.jsonl", "loop.jsonl' is a loop of symbolic links"),
        ("results=pipe.jsonl", "results=pipe.jsonl: is a pipe, socket or device"),
        ("results=full.jsonl", "results=full.jsonl: is a pipe, socket or device"),
        ("results=.", "results=.: is a folder"),
        ("tokens=[]", "tokens=[]: leave it out"),
        ("seconds=nan", "seconds=nan: must be more than 0"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_measured(
    option: str, expected: str, command_here: Run
) -> None:
    result = command_here("evaluate.kernels", option)
    assert result.returncode == 2, result.stderr
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_value_that_is_given_twice_is_measured_once(command_here: Run) -> None:
    assert len(cases(made.grid(vectors=[8, 8], tokens=[1, 1]))) == 120
    result = command_here("evaluate.kernels", "vectors=[8,8]")
    assert result.returncode == 3
    assert "120 of 120 products are not in results.jsonl" in result.stderr


def test_tables_are_written_whole_or_not_at_all(command_here: Run, tmp_path: Path) -> None:
    for case in cases(made.grid(in_features=[1024], out_features=[1024])):
        append(tmp_path / "results.jsonl", made.row_of(case))
    out = tmp_path / "tables"
    assert command_here("evaluate.kernels", *SHAPE, "out=tables").returncode == 0
    before = {path.name: path.read_text() for path in out.iterdir()}
    assert set(before) == {"kernels.md", "kernels.csv"}
    (out / ".unfinished-kernels.csv").mkdir()  # as a killed run leaves it
    assert command_here("evaluate.kernels", *SHAPE, "out=tables").returncode == 0
    assert {path.name: path.read_text() for path in out.iterdir()} == before
