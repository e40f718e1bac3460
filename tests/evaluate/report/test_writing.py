"""Where a report is written: odd paths, plots that cannot be drawn, two reports at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluate.report.show.tables import explained_columns
from evaluate.report.writing import LOCK
from tests.conftest import Run
from tests.evaluate.report.made import Cell, runs, write

STEADY = [1.0, 1.001, 0.999]


def results(folder: Path, *names: str) -> Path:
    return write(folder / "results.jsonl", runs(*[Cell(name, STEADY) for name in names]))


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("results.jsonl", "out=results.jsonl: is no folder"),
        ("results.jsonl/report", "is no folder"),
        ("loop", "out=loop: is no folder"),
    ],
)
def test_a_place_that_is_no_folder_is_named(
    out: str, expected: str, command_here: Run, tmp_path: Path
) -> None:
    path = results(tmp_path, "original")
    (tmp_path / "loop").symlink_to("loop")
    before = path.read_bytes()
    result = command_here("evaluate.report", f"out={out}")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert expected in result.stderr
    assert path.read_bytes() == before


def test_a_folder_in_the_place_of_a_file_is_kept(command_here: Run, tmp_path: Path) -> None:
    results(tmp_path, "original")
    kept = tmp_path / "report" / "report.json" / "mine"
    kept.mkdir(parents=True)
    result = command_here("evaluate.report")
    assert result.returncode == 2, result.stderr
    assert "report/report.json: is a folder" in result.stderr
    assert kept.is_dir()
    assert not (tmp_path / "report" / LOCK).exists()


def test_a_plot_that_cannot_be_drawn_costs_only_itself(command_here: Run, tmp_path: Path) -> None:
    results(tmp_path, "original", "w8a8")
    (tmp_path / "report" / "plot-limits.svg").mkdir(parents=True)
    result = command_here("evaluate.report")
    assert result.returncode == 3, result.stderr
    assert "report: 1 plots are missing; plot-limits.svg:" in result.stderr
    assert "Traceback" not in result.stderr
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"report.html", "report.md", "report.json", "plot-overview.svg"} <= names


def test_a_program_that_has_drawn_charts_itself_gets_its_report(tmp_path: Path) -> None:
    """The charting library has threads, which a fork would wait for."""
    results(tmp_path, "original", "w8a8")
    script = (
        "import vl_convert\n"
        "vl_convert.vegalite_to_svg({'mark': 'point', 'data': {'values': [{'a': 1}]}})\n"
        "from conf.schema.report import ReportConfig\n"
        "from evaluate.report.writing import write_report\n"
        "write_report(ReportConfig())\n"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, cwd=tmp_path, env=os.environ, check=True, timeout=300)
    assert (tmp_path / "report" / "plot-overview.svg").is_file()


def test_report_md_has_commands_and_explains_its_columns(command_here: Run, tmp_path: Path) -> None:
    results(tmp_path, "original", "w8a8")
    assert command_here("evaluate.report").returncode == 0
    text = (tmp_path / "report" / "report.md").read_text()
    (answer,) = json.loads((tmp_path / "report" / "report.json").read_text())["setups"]
    assert answer["serve_commands"]
    block = "\n".join(answer["serve_commands"])
    assert f"To serve it:\n\n```sh\n{block}\n```\n" in text
    assert answer["missing"]
    assert all(f"`{one['command']}`" in text for one in answer["missing"])
    explained = [column for column in explained_columns() if f"| {column.title} " in text]
    assert explained
    assert all(f"- {column.title}: " in text for column in explained)
