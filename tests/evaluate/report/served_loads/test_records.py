"""Percentiles and requests over time of served loads, and the Pareto front over batch sizes."""

from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.show.served_loads.records import (
    batch_point_records,
    in_progress,
    percentile_records,
    percentiles,
    timeline_records,
)
from evaluate.results.row_types import Requests, WorkloadSettings
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import SpeedRow, TrialRow
from tests.evaluate.report.made import Cell, ranked, runs, write
from tests.evaluate.report.made_searches import searched, table_of

COUNT = 100


def served_rows(checkpoint: str, seconds: float) -> list[SpeedRow]:
    """A request each tenth of a second; its first token comes after 1, 2, ..., 100 ms."""
    rows = Cell(checkpoint, [10.0, 10.0, 10.0], "rate_10").rows()
    for row in rows:
        row.settings = WorkloadSettings(
            rate=10, requests=COUNT, input_tokens=128, output_tokens=64, ttft_ms=500, tpot_ms=50
        )
        times = [(n / 10, n / 10 + (n + 1) / 1000, n / 10 + seconds, 1) for n in range(COUNT)]
        row.requests = Requests(times_s=times)
        row.values = SpeedValues(
            latency_s=times[-1][2],
            request_latency_median_s=seconds,
            tpot_median_s=0.01,
            tpot_p99_s=0.02,
        )
    return rows


def test_percentiles_are_those_of_all_requests_of_all_runs() -> None:
    (group,) = ranked([*served_rows("original", 2.0), *served_rows("w8a8", 1.0)])
    records = {record.candidate: record for record in percentile_records(group)}
    assert records["w8a8"].requests == 3 * COUNT
    found = [getattr(records["w8a8"], f"ttft_p{n}_ms") for n in (50, 90, 99)]
    assert found == pytest.approx([51, 91, 100])
    assert records["w8a8"].latency_p90_s == pytest.approx(1.0)
    assert records["original"].latency_p90_s == pytest.approx(2.0)
    assert (records["w8a8"].tpot_p50_ms, records["w8a8"].tpot_p99_ms) == (10.0, 20.0)


def test_percentiles_of_few_values() -> None:
    assert percentiles([3.0]) == [3.0, 3.0, 3.0]
    assert percentiles([1.0, 2.0]) == [2.0, 2.0, 2.0]


def test_requests_in_progress_rise_stay_and_fall() -> None:
    row = served_rows("original", 2.0)[0]
    counts = [count for _, count in in_progress(row)]
    assert counts[0] == 1
    assert max(counts) in (20, 21)
    assert counts[-1] == 0
    (group,) = ranked(served_rows("original", 2.0))
    assert len(timeline_records(group)) == len(counts)


def test_a_batch_has_neither() -> None:
    (group,) = ranked(runs(Cell("original", [1.0, 1.0])))
    assert percentile_records(group) == []
    assert timeline_records(group) == []


def test_the_front_holds_what_no_other_point_beats_in_both() -> None:
    cells = [
        Cell(name, [seconds * n**0.5] * 3, f"batch_{n}", batch=n)
        for name, seconds in (("original", 1.0), ("w8a8", 0.8))
        for n in (1, 4, 16)
    ]
    (group,) = ranked(runs(*cells))
    records = batch_point_records(group)
    assert len(records) == 6
    assert {record.candidate for record in records if record.is_best} == {"w8a8"}
    one = next(r for r in records if (r.candidate, r.size) == ("w8a8", 4))
    assert one.gpu_tok_s == pytest.approx(4 * 64 / 1.6)
    assert one.user_tok_s == pytest.approx(63 / (1.6 * 0.9))


def test_a_report_has_their_charts_and_tables(tmp_path: Path) -> None:
    rows = [*served_rows("original", 2.0), *served_rows("w8a8", 1.0)]
    results = write(tmp_path / "results.jsonl", rows)
    report = make_report(ReportConfig(results=[str(results)]))
    assert report.faults == []
    assert "timelines" in [chart.name for chart in report.charts]
    assert len(report.sets.percentiles) == 2


def held_rows(has_times: bool, checkpoint: str = "original") -> list[TrialRow]:
    """Three searches, which end at 4 requests a second. First tokens come later at higher rates."""
    rows = searched(checkpoint, 4, 4, 4)
    for row in rows:
        ttft = row.settings.rate / 100
        row.values = row.values.with_fields(
            ttft_median_s=ttft, request_latency_median_s=1.0, request_latency_p99_s=3.0
        )
        if has_times and row.trial.meets:
            times = [(n / 10, n / 10 + ttft, n / 10 + 2.0, 1) for n in range(COUNT)]
            row.requests = row.requests.with_fields(times_s=times)
    return rows


def test_percentiles_of_a_capacity_are_those_of_the_trials_at_its_rate() -> None:
    rows = held_rows(has_times=True)
    (group,) = ranked([*rows])
    table = table_of(rows)
    (record,) = percentile_records(group, [table])
    assert {row.settings.rate for row in table.cells[0].best} == {4.0}
    assert record.requests == 3 * COUNT
    assert record.ttft_p50_ms == pytest.approx(40.0)
    assert (record.latency_p90_s, record.tpot_p99_ms) == (pytest.approx(2.0), 20.0)
    lines = timeline_records(group, [table])
    assert {(line.title, line.candidate) for line in lines} == {("capacity", "original")}
    assert max(line.in_progress for line in lines) in (20, 21)


def test_trials_without_times_have_the_percentiles_that_their_rows_hold() -> None:
    rows = held_rows(has_times=False)
    (group,) = ranked([*rows])
    table = table_of(rows)
    (record,) = percentile_records(group, [table])
    assert (record.ttft_p90_ms, record.latency_p90_s) == (None, None)
    assert (record.ttft_p99_ms, record.latency_p50_s, record.latency_p99_s) == (300.0, 1.0, 3.0)
    assert timeline_records(group, [table]) == []


def test_a_search_that_found_no_rate_has_none(tmp_path: Path) -> None:
    rows = [*held_rows(has_times=True), *held_rows(has_times=False, checkpoint="w8a8")]
    for row in rows:
        if row.checkpoint == "w8a8":
            row.values = row.values.with_fields(good_share=0.5)
    results = write(tmp_path / "results.jsonl", rows)
    report = make_report(ReportConfig(results=[str(results)]))
    assert [record.candidate for record in report.sets.percentiles] == ["original"]
    assert "timelines" in [chart.name for chart in report.charts]
