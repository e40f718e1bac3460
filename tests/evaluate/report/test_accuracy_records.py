"""The report's table of accuracy."""

from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.show import row_records
from evaluate.report.writing import write_report
from tests.evaluate.accuracy.made_rows import block_row
from tests.evaluate.report.made import Cell, runs, write


def test_ranks_are_computed_once_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*runs(Cell("a", [1.0, 1.001, 0.999])), block_row("a", 1), block_row("b", 2, 0.1)]
    path = write(tmp_path / "results.jsonl", rows)
    calls, rank_ranges = [], row_records.rank_ranges
    monkeypatch.setattr(
        row_records, "rank_ranges", lambda rows: (calls.append(rows), rank_ranges(rows))[1]
    )
    write_report(ReportConfig(results=[str(path)], out=str(tmp_path / "report")))
    assert len(calls) == 1
    table = (tmp_path / "report" / "tables" / "accuracy.csv").read_text()
    assert [line.rsplit(",", 1)[1] for line in table.splitlines()] == ["rank", "1", "2"]


def test_ranks_on_two_devices_are_told_apart(tmp_path: Path) -> None:
    rows = [
        block_row(name, seed, mean, engine="vllm", device=device)
        for device in ("H200", "A100")
        for seed, (name, mean) in enumerate((("a", 0.0), ("b", 0.1)))
    ]
    records = make_report(
        ReportConfig(results=[str(write(tmp_path / "results.jsonl", rows))])
    ).accuracy
    assert [(record.engine, record.rank) for record in records] == [
        ("vllm, H200", "1"),
        ("vllm, H200", "2"),
        ("vllm, A100", "1"),
        ("vllm, A100", "2"),
    ]
    one_device = write(tmp_path / "results.jsonl", rows[:2])
    records = make_report(ReportConfig(results=[str(one_device)])).accuracy
    assert [record.engine for record in records] == ["vllm", "vllm"]
