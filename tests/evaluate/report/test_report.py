"""The report as files: what it says, what it refuses, and what it needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.writing import write_report
from evaluate.results.rows import ProfileRow, Row, SensitivityRow, line_content
from tests.conftest import Run
from tests.evaluate.made_rows import failed_row, row_with, skipped_row
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

EVIL = "w8a8<script>alert(1)</script>|\"'&"
SPEED = runs(
    Cell("original", [1.0, 1.01, 0.99, 1.0, 1.0]),
    Cell("w8a8", [0.8, 0.81, 0.79, 0.8, 0.8]),
)


def written(rows: list[Row], folder: Path) -> tuple[str, str]:
    results = write(folder / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(folder / "report")))
    pages = [folder / "report" / f"report.{kind}" for kind in ("md", "html")]
    return pages[0].read_text(), pages[1].read_text()


def test_the_answer_comes_first(tmp_path: Path) -> None:
    markdown, page = written([*SPEED, accuracy_row("w8a8", 0.999, "no loss seen")], tmp_path)
    first = "\n".join(markdown.splitlines()[:6])
    assert "**Serve w8a8**: 1.25 times as fast as the original" in first
    assert "99.9% of the quality is left (no loss seen)" in first
    assert "Serve <strong>w8a8</strong>" in page


def test_the_page_needs_no_network_and_stays_small(tmp_path: Path) -> None:
    _, page = written(SPEED, tmp_path)
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?(https?:)?//", page)
    assert len(page.encode()) < 5e6


def test_plots_stand_beside_the_markdown(tmp_path: Path) -> None:
    markdown, _ = written(SPEED, tmp_path)
    plots = re.findall(r"\]\((plot-[a-z]+\.svg)\)", markdown)
    assert "plot-overview.svg" in plots
    for plot in plots:
        assert (tmp_path / "report" / plot).read_text().startswith("<svg")


def test_a_bad_line_is_named_the_rest_is_reported_and_the_exit_is_not_0(
    command_here: Run, tmp_path: Path
) -> None:
    results = write(tmp_path / "results.jsonl", SPEED)
    old = json.dumps(line_content(SPEED[0]) | {"schema": 1})
    nan = json.dumps(line_content(SPEED[0])).replace('"latency_s": 1.0', '"latency_s": NaN')
    assert "NaN" in nan
    with results.open("a") as file:
        file.write(f"{{broken\n{old}\n{nan}\n")
    result = command_here("evaluate.report", f"results=[{results}]", "out=report")
    assert result.returncode == 2
    for number in (11, 12, 13):
        assert f"results.jsonl:{number}: " in result.stderr
    assert "accuracy not judged: w8a8" in result.stdout
    assert "results.jsonl:11" in (tmp_path / "report" / "report.md").read_text()


def test_duplicates_count_once_and_are_said(tmp_path: Path) -> None:
    one, other = (write(tmp_path / f"{name}.jsonl", SPEED) for name in "ab")
    report = make_report(ReportConfig(results=[str(one), str(other)]))
    assert "10 rows stand there more than once and count once" in report.notes
    assert {len(e.cell.valid) for g in report.groups for e in g.workloads[0].entries} == {5}


def test_other_gpus_versions_and_no_original_are_shown_apart(tmp_path: Path) -> None:
    rows = SPEED + runs(
        Cell("w8a8", [0.5, 0.51], device="NVIDIA A100"),
        Cell("w8a8", [0.3, 0.31], versions={"vllm": "0.32.0", "torch": "2.13.0"}),
    )
    markdown, page = written(rows, tmp_path)
    for title in ("NVIDIA H200, vllm 0.25.1", "NVIDIA A100, vllm 0.25.1", "H200, vllm 0.32.0"):
        assert title in markdown
        assert title in page
    assert "nothing is ranked or averaged across them" in markdown
    assert "no original to compare with" in markdown


def test_no_results_are_bad_input(command_here: Run, tmp_path: Path) -> None:
    missing = command_here("evaluate.report", "results=[nowhere.jsonl]")
    assert missing.returncode == 2
    assert "nowhere.jsonl: there is no such file\n" in missing.stderr
    (tmp_path / "checkpoints").mkdir()
    write(tmp_path / "checkpoints" / "demo.jsonl", SPEED)
    missing = command_here("evaluate.report", "results=[nowhere.jsonl]")
    assert "make demo wrote results=checkpoints/demo.jsonl\n" in missing.stderr
    (tmp_path / "report.json").write_text('{\n "answer": "fp8"\n}\n')
    report = command_here("evaluate.report", "results=[report.json]")
    assert report.returncode == 2
    assert "give the .jsonl file that evaluate wrote" in report.stderr
    (tmp_path / "empty.jsonl").touch()
    empty = command_here("evaluate.report", "results=[empty.jsonl]")
    assert empty.returncode == 2
    assert "there are no results in it" in empty.stderr


def test_names_and_errors_are_escaped(tmp_path: Path) -> None:
    failed = failed_row(EVIL, EVIL, EVIL)
    rows = SPEED + runs(Cell(EVIL, [0.7, 0.71, 0.7], measure="interactive"))
    markdown, page = written([*rows, failed], tmp_path)
    assert "<script>alert" not in markdown
    assert "<script>alert" not in page
    for line in markdown.splitlines():
        if "alert" in line and line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == len(
                re.findall(r"(?<!\\)\|", next_header(markdown, line))
            )


def next_header(markdown: str, line: str) -> str:
    """The header of the table that a line stands in."""
    lines = markdown.splitlines()
    place = lines.index(line)
    while lines[place - 1].startswith("|"):
        place -= 1
    return lines[place]


def test_invalid_runs_outliers_and_failures_are_listed(tmp_path: Path) -> None:
    rows = SPEED + runs(Cell("fp8", [0.7, 0.7, 0.7, 0.7, 3.0]))
    rows[-1].repeat = 4
    rows[0].invalid = ["the GPU was throttled"]
    failed = failed_row("w4a16", "base", "out of memory")
    skipped = skipped_row("w4a16", "long_context", "too long")
    markdown, page = written([*rows, failed, skipped], tmp_path)
    for words in (
        "original, interactive, run 1: invalid, the GPU was throttled",
        "fp8, interactive: outlier left out, 3 s against a median of 0.7 s",
        "w4a16, base: failed, out of memory",
        "w4a16, long_context: skipped, too long",
    ):
        assert words in markdown
        assert words in page


def test_engines_profiles_layers_and_published_figures_are_shown(tmp_path: Path) -> None:
    rows = SPEED + runs(
        Cell("original", [3.0, 3.1], engine="transformers", versions={"transformers": "5.17.0"}),
        Cell("w8a8_smooth_gptq", [0.8, 0.81, 0.8]),
        *(
            Cell("original", [1.0, 1.0], f"context_{n}", inputs=n, outputs=64)
            for n in (1, 64, 4096)
        ),
    )
    profile = row_with(
        ProfileRow,
        checkpoint="w8a8",
        measure="interactive",
        values={"window_s": 1.0, "kinds_s": {"matrix products": 0.7, "gaps": 0.3}},
        environment={"engine": "vllm"},
    )
    blocks = [{"block": f"model.layers.{n}", "divergence": 0.1 * n, "bytes": 2**20} for n in (1, 2)]
    layers = row_with(
        SensitivityRow,
        checkpoint="w4a16",
        measure="sensitivity",
        values={"blocks": blocks, "worth_ignoring": ["model.layers.2"]},
    )
    markdown, page = written([*rows, profile, layers], tmp_path)
    for title in (
        "Engines side by side",
        "Where the time goes",
        "Which layers pay",
        "Against published figures",
        "Over the context length",
        "Qwen2-7B-Instruct over context length (published)",
        "Engines (published)",
    ):
        assert title in markdown
        assert title in page


def test_the_report_is_written_without_torch_and_vllm(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", SPEED)
    script = (
        "import sys\n"
        "for name in ('torch', 'vllm', 'transformers', 'llmcompressor', 'datasets'):\n"
        "    sys.modules[name] = None\n"
        f"sys.argv = ['report', 'results=[{results}]', 'out={tmp_path / 'report'}']\n"
        "import runpy; runpy.run_module('evaluate.report', run_name='__main__')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("targets.tpot_ms=-1", "targets.tpot_ms=-1.0: must be more than 0"),
        ("mix.base=0", "mix.base=0.0: must be more than 0"),
        ("targets.tpot=3", "Did you mean targets.tpot_ms?"),
    ],
)
def test_a_target_that_makes_no_sense_is_bad_input(
    argument: str, words: str, command_here: Run
) -> None:
    result = command_here("evaluate.report", argument)
    assert result.returncode == 2
    assert words in result.stderr
