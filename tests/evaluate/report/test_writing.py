"""Where a report is written: odd paths, plots that cannot be drawn, two reports at once."""

from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.show.charts.plots import plot_inside, write_plots
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


@pytest.mark.parametrize("name", ["w8a8", "constructor"])
def test_a_plot_that_cannot_be_drawn_costs_only_itself(name: str, tmp_path: Path) -> None:
    """Vega takes a name that every JavaScript object has for something else."""
    report = make_report(ReportConfig(results=[str(results(tmp_path, "original", name))]))
    report.charts = [chart for chart in report.charts if chart.name in ("overview", "limits")]
    (tmp_path / "plot-limits.svg").mkdir()
    failures = write_plots(report, tmp_path)
    assert "plot-limits.svg" in failures
    for chart in report.charts:
        assert bool(plot_inside(chart, tmp_path)) == (f"plot-{chart.name}.svg" not in failures)
    assert len(failures) == (2 if name == "constructor" else 1)
