"""What the report says in words: of workloads, of intervals, and of one setup alone."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.workload_text import workload_text
from evaluate.report.show.records import MedianWithInterval
from evaluate.report.show.sentences import sentence_lists
from evaluate.report.show.tables import with_interval
from evaluate.report.show.terminal_tables import PLUS_MINUS, figure, plus_minus, speed_table
from evaluate.report.writing import write_report
from evaluate.results.cells import cells
from evaluate.results.row_types import WorkloadSettings
from evaluate.results.summary import summarize
from tests.evaluate.made_rows import speed_row
from tests.evaluate.report.made import Cell, runs, write

SPREAD = [1.0, 1.02, 0.98, 1.01]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"input_tokens": 256, "output_tokens": 1, "batch": 1},
            "1 request at once, 256 tokens in, 1 token out",
        ),
        (
            {"concurrency": 64, "requests": 8000, "input_tokens": 16384, "ttft_ms": 500.0},
            "64 clients that each send one request after another, 8,000 requests in all, "
            "16,384 tokens in, TTFT target 500 ms",
        ),
        ({"rate": 2.5, "shared_prefix": 12}, "2.5 requests/s arriving, shared prefix 12"),
        ({"input_tokens": 8, "prefix": None, "shape": "many"}, "8 tokens in, shape many"),
        ({}, ""),
    ],
)
def test_a_load_in_words(settings: dict[str, Any], words: str) -> None:
    assert workload_text(WorkloadSettings(**settings)) == words


def test_plus_minus_is_one_quantity_in_the_terminal_in_markdown_and_on_the_page(
    tmp_path: Path,
) -> None:
    rows = runs(Cell("original", SPREAD))
    summary = summarize(SPREAD)
    half = f"{(summary.high - summary.low) / 2 / summary.median:.1%}"
    assert plus_minus(summary.median, summary.low, summary.high) == half
    shown = with_interval(MedianWithInterval(summary.median, summary.low, summary.high))
    assert shown.endswith(f"±{half}")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(speed_table(rows, 0.1))
    terminal = console.export_text()
    results = write(tmp_path / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    written = [(tmp_path / f"report.{kind}").read_text() for kind in ("md", "html")]
    for shown in (terminal, *written):
        assert half in shown
        assert PLUS_MINUS in shown


def test_the_terminal_shows_the_latency_of_a_request_where_the_arrivals_set_the_duration() -> None:
    rows = [
        speed_row(
            measure="traffic",
            repeat=repeat,
            values={"latency_s": 30.0, "request_latency_median_s": 2.5 * factor},
            settings={"rate": 1.0},
        )
        for repeat, factor in enumerate(SPREAD)
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(speed_table(rows, 0.1))
    terminal = console.export_text()
    (cell,) = cells(rows)
    shown = cell.summary("request_latency_median_s")
    assert shown is not None
    assert f" {figure(shown.median)} " in terminal
    assert plus_minus(shown.median, shown.low, shown.high) in terminal
    assert "30.0" not in terminal


def test_each_setup_has_its_own_sentences(tmp_path: Path) -> None:
    cells = [
        Cell(name, [part * t for t in (1.0, 1.001, 0.999)], f"batch_{n}", batch=n)
        for n in (1, 8, 64)
        for name, part in (("original", 1.0), ("w8a8", 0.7))
    ]
    rows = runs(*cells, Cell("w4a16", [1.0, 1.0], engine="transformers"))
    rows[0].invalid = ["the GPU was throttled"]
    results = write(tmp_path / "results.jsonl", rows)
    report = make_report(ReportConfig(results=[str(results)]))
    lists = sentence_lists(report)
    assert any("w8a8 is faster" in words for words in lists["findings"].by_setup[0])
    assert lists["findings"].by_setup[1] == []
    assert any("nothing is ranked or averaged" in words for words in lists["notes"].general)
    assert any("no original" in words for words in lists["notes"].by_setup[1])
    assert not any("no original" in words for words in lists["notes"].by_setup[0])
    assert any("throttled" in words for words in lists["left-out"].by_setup[0])
    assert lists["left-out"].by_setup[1] == []
    said = {
        words for one in lists.values() for found in (one.general, *one.by_setup) for words in found
    }
    assert set(report.notes) <= said
    assert set(report.left_out) <= said
