"""Kernels that were timed alone, in a report: beside other rows, and without any."""

from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.kernels.cases import cases
from evaluate.report.show.kernels.records import grid_records
from evaluate.report.writing import write_report
from evaluate.results.results_file import append
from tests.evaluate.kernels.made import all_rows, grid, row_of
from tests.evaluate.report.made import Cell, runs, write


def test_records_have_the_published_ratio_beside_ours() -> None:
    records = grid_records(all_rows(0.7, in_features=[1024], out_features=[1024]))
    assert records[0].format == "vptq 4096/256, 1 token"
    assert records[0].ratio == pytest.approx(0.7)
    assert records[0].published == pytest.approx(1.02, abs=0.005)


def test_wrong_results_are_not_shown() -> None:
    assert grid_records([row_of(cases(grid())[0], invalid=("off by 0.5",))]) == []


@pytest.mark.parametrize("with_speed", [True, False])
def test_the_report_draws_the_heat_map(tmp_path: Path, with_speed: bool) -> None:
    path = tmp_path / "results.jsonl"
    if with_speed:
        write(path, runs(Cell("original", [1.0, 1.01]), Cell("w8a8", [0.7, 0.71])))
    for row in all_rows(out_features=[1024, 4096]):
        append(path, row)
    out = tmp_path / "report"
    report = write_report(ReportConfig(results=[str(path)], out=str(out)))
    assert report.faults == []
    assert ("Fastest" in (out / "report.md").read_text()) == with_speed
    assert "plot-kernel_grid.svg" in (out / "report.md").read_text()
    assert "published ratio" in (out / "report.md").read_text()
    assert "0.50" in (out / "plot-kernel_grid.svg").read_text()
    assert "chart-kernel_grid" in (out / "report.html").read_text()
