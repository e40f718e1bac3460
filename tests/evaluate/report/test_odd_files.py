"""Files that are no plain sweep: one kind of row only, several sessions, odd types."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from conf import ROOT
from conf.schema.report import ReportConfig, TargetsConfig
from evaluate.report.contents import Report, make_report
from evaluate.report.show.markdown import escape
from evaluate.report.writing import write_report
from evaluate.results.results_file import read
from evaluate.results.rows import Row, line_content
from tests.evaluate.made_rows import failed_row, skipped_row, without
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

STEADY = [1.0, 1.001, 0.999]


def report_of(folder: Path, *files: list[Row]) -> Report:
    names = [str(write(folder / f"{n}.jsonl", rows)) for n, rows in enumerate(files)]
    return make_report(ReportConfig(results=names))


@pytest.mark.parametrize(
    "rows",
    [
        [accuracy_row("w8a8", 0.99, "small loss")],
        [failed_row("w8a8", "base", "no kernel")],
        [skipped_row("w8a8", "base", "too long")],
    ],
)
def test_a_file_of_one_kind_of_row_is_reported(rows: list[Row], tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    assert "nothing to recommend" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("valid", [0, 1])
def test_a_sweep_of_invalid_runs_is_reported(valid: int, tmp_path: Path) -> None:
    """Published rows of every batch size, of which at most the first is valid."""
    rows, _ = read(ROOT / "results" / "h200-qwen3-8b-kernels" / "batches.jsonl.gz")
    for row in rows[valid:]:
        row.invalid = ["1 other processes were using the GPU"]
    results = write(tmp_path / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    text = (tmp_path / "report.md").read_text()
    assert "**No recommendation**" in text
    assert "invalid, 1 other processes were using the GPU" in text
    drawn = {path.name for path in tmp_path.glob("plot-*.svg")}
    assert "plot-batches.svg" not in drawn
    assert drawn == set(re.findall(r"plot-\w+\.svg", text))


@pytest.mark.parametrize("has_speed", [True, False])
def test_targets_without_a_recommendation_are_named(
    has_speed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [accuracy_row("w8a8", 0.99, "small loss"), *runs(Cell("original", STEADY))]
    results = write(tmp_path / "results.jsonl", rows if has_speed else rows[:1])
    targets = TargetsConfig(tpot_ms=20.0)
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path), targets=targets))
    line = "targets.tpot_ms=20 has no effect: the results hold no speed"
    assert (line in capsys.readouterr().err) != has_speed


def test_rows_that_were_measured_again_do_not_come_back_with_another_file(tmp_path: Path) -> None:
    old = runs(Cell("w4a16", [0.5, 0.5, 0.5]))
    new = runs(Cell("w4a16", [2.0, 2.0, 2.0]))
    for row in new:
        row.generation, row.time = 1, "2026-02-01T00:00:00+00:00"
    report = report_of(tmp_path, old, [*old, *new])
    (entry,) = report.groups[0].workloads[0].entries
    assert entry.cell.values("latency_s") == [2.0, 2.0, 2.0]
    assert any("no longer count" in note for note in report.notes)


def test_two_sessions_are_two_lines_and_show_how_much_starts_differ(tmp_path: Path) -> None:
    one, other = runs(Cell("w4a16", STEADY)), runs(Cell("w4a16", [1.1 * t for t in STEADY]))
    for row in other:
        row.time = "2026-02-01T00:00:00+00:00"
    report = report_of(tmp_path, one, other)
    (group,) = report.groups
    assert [entry.candidate for entry in group.workloads[0].entries] == ["w4a16", "w4a16 #2"]
    assert group.noise.starts.usual == pytest.approx(math.log(1.1) / math.sqrt(2), abs=0.001)
    assert any("more than one session" in note for note in report.notes)


def test_a_run_that_was_taken_again_because_it_was_invalid_is_no_other_session(
    tmp_path: Path,
) -> None:
    rows = runs(Cell("w4a16", STEADY))
    again = runs(Cell("w4a16", [2 * t for t in STEADY]))[0]
    rows[0].invalid, again.time = ["the GPU was throttled"], "2026-02-01T00:00:00+00:00"
    report = report_of(tmp_path, [*rows, again])
    (entry,) = report.groups[0].workloads[0].entries
    assert entry.cell.values("latency_s") == [*STEADY[1:], 2 * STEADY[0]]
    assert not any("session" in note for note in report.notes)


def sessions_of(report: Report) -> dict[str, list[float]]:
    (workload,) = report.groups[0].workloads
    return {entry.candidate: entry.cell.values("latency_s") for entry in workload.entries}


def test_another_file_is_another_session_as_a_whole(tmp_path: Path) -> None:
    slow = [1.5, 1.501, 1.499]
    few, more = runs(Cell("w4a16", STEADY[:2])), runs(Cell("w4a16", slow))
    found = sessions_of(report_of(tmp_path, few, more))
    assert found == {"w4a16": STEADY[:2], "w4a16 #2": slow}
    first, second = runs(Cell("w4a16", STEADY)), runs(Cell("w4a16", slow))
    first[0].invalid = second[1].invalid = ["the GPU was throttled"]
    found = sessions_of(report_of(tmp_path, first, second))
    assert found == {"w4a16": STEADY[1:], "w4a16 #2": [slow[0], slow[2]]}


def test_what_goes_on_in_another_file_is_the_same_session(tmp_path: Path) -> None:
    rows = runs(Cell("w4a16", STEADY))
    assert sessions_of(report_of(tmp_path, rows[:1], rows)) == {"w4a16": STEADY}
    assert sessions_of(report_of(tmp_path, rows[:2], rows[2:])) == {"w4a16": STEADY}


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    """An old copy, another session, and what the first one went on to."""
    slow = [1.5, 1.501, 1.499]
    first, other = runs(Cell("w4a16", STEADY)), runs(Cell("w4a16", slow))
    for row in other:
        row.time = "2026-02-01T00:00:00+00:00"
    for files in itertools.permutations([first[:1], other, first]):
        assert sessions_of(report_of(tmp_path, *files)) == {"w4a16": STEADY, "w4a16 #2": slow}


def test_failures_of_one_second_are_all_listed(tmp_path: Path) -> None:
    failed = [
        failed_row(name, "", "no kernel", time="2026-01-01T00:00:00") for name in ("w4a16", "w8a8")
    ]
    failed[0].generation = 1
    report = report_of(tmp_path, failed)
    assert report.left_out == [f"qwen3-8b, {n}: failed, no kernel" for n in ("w4a16", "w8a8")]


def test_loads_that_differ_in_any_setting_have_names_of_their_own(tmp_path: Path) -> None:
    one, other = (runs(Cell("w4a16", STEADY)) for _ in range(2))
    for rows, most in ((one, 100), (other, 200)):
        for row in rows:
            row.key += str(most)
            row.settings.requests = most
    report = report_of(tmp_path, [*one, *other])
    names = [workload.name for workload in report.groups[0].workloads]
    assert [name.rpartition(", ")[2] for name in names] == ["requests 100)", "requests 200)"]


def test_a_time_in_one_run_only_ranks_nothing(tmp_path: Path) -> None:
    bad = runs(Cell("bad", [0.1, 0.1]))
    bad[1].values = without(bad[1].values, "latency_s")
    report = report_of(
        tmp_path, [*bad, *runs(Cell("fast", STEADY), Cell("slow", [2.0, 2.0, 2.01]))]
    )
    ranks = {entry.candidate: entry.rank for entry in report.groups[0].workloads[0].entries}
    assert ranks == {"bad": None, "fast": 1, "slow": 2}


def test_another_context_makes_no_other_candidate(tmp_path: Path) -> None:
    cells = []
    for measure, context in (("interactive", 192), ("long_context", 16416)):
        options = {"max_model_len": context}
        cells.append(Cell("original", [2 * t for t in STEADY], measure, options=options))
        cells.append(Cell("w4a16", STEADY, measure, options=options))
    report = report_of(tmp_path, runs(*cells))
    assert report.answers[0].overall.candidate == "w4a16"


def test_other_weights_of_the_same_name_stay_apart_in_every_load(tmp_path: Path) -> None:
    rows = runs(
        Cell("w4a16", STEADY), Cell("w4a16", [0.9 * t for t in STEADY], "base"),
        Cell("w4a16", [0.8 * t for t in STEADY], format="new"),
    )  # fmt: skip
    for row in rows[-3:]:
        row.environment.checkpoint_sha256 = "0123456789"
    candidates = report_of(tmp_path, rows).groups[0].candidates
    assert set(candidates) == {"w4a16 (weights w4a16)", "w4a16 (weights 01234567)"}


@pytest.mark.parametrize(
    "change",
    [
        {"values": None},
        {"values": {"latency_s": None}},
        {"values": {"latency_s": "1"}},
        {"environment": None},
        {"environment": {"versions": None}},
        {"environment": {"engine_options": []}},
        {"settings": []},
        {"kernels": None},
        {"measure": 3},
        {"checkpoint": None},
        {"generation": "1"},
    ],
)
def test_a_line_of_another_type_is_a_fault_of_that_line(
    change: dict[str, Any], tmp_path: Path
) -> None:
    row = runs(Cell("original", [1.0]))[0]
    path = tmp_path / "results.jsonl"
    path.write_text(
        json.dumps(line_content(row) | change) + "\n" + json.dumps(line_content(row)) + "\n"
    )
    rows, faults = read(path)
    assert len(rows) == 1
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}:1: ")


def test_a_number_that_is_too_large_is_no_number(tmp_path: Path) -> None:
    row = json.dumps(line_content(runs(Cell("original", [1.0]))[0]))
    (tmp_path / "r").write_text(row.replace('"latency_s": 1.0', '"latency_s": 1e999'))
    assert "not a number" in read(tmp_path / "r")[1][0]


@pytest.mark.parametrize(
    ("words", "escaped"),
    [
        ("w8a8_smooth_gptq", "w8a8_smooth_gptq"),
        ("a|b", "a\\|b"),
        ("a\\|b", "a\\\\\\|b"),
        ("a\rb\nc", "a b c"),
        ("[x](http://evil)", "\\[x\\](http://evil)"),
        ("_it_ **is** `so`", "\\_it\\_ \\*\\*is\\*\\* \\`so\\`"),
        ("<b>&", "&lt;b&gt;&amp;"),
    ],
)
def test_markdown_takes_data_for_nothing_but_words(words: str, escaped: str) -> None:
    assert escape(words) == escaped


def test_a_run_that_stands_out_is_in_no_figure(tmp_path: Path) -> None:
    rows = runs(Cell("original", [1.0, 1.0, 1.0, 1.0, 9.0]))
    for number, row in enumerate(rows):
        row.values.joules_per_output_token = 100.0 if number == 4 else 1.0
    entry = report_of(tmp_path, rows).groups[0].workloads[0].entries[0]
    assert entry.cell.summary("joules_per_output_token").mean == 1.0  # type: ignore[union-attr]
