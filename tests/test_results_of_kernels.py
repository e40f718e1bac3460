"""What is published of our kernels is what the rows say, by today's code."""

import re
import statistics
from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.kernels.tables import Line, summary, write_tables
from evaluate.report.contents import make_report
from evaluate.report.show.our_kernels.records import gain_records
from evaluate.report.show.records import speedup_of
from evaluate.report.show.tables import speedup
from evaluate.results.results_file import read
from evaluate.results.rows import KernelRow, SpeedRow
from tests.conftest import ROOT
from tests.published import OURS, OVER_BF16, RESULTS, short, tables

KERNELS = "results/h200-qwen3-8b-kernels/results.jsonl.gz"
VPTQ = ROOT / "results" / "h200-vptq"
AGAIN = "results/h200-qwen3-8b-kernels/again.jsonl.gz"
BATCHES = "results/h200-qwen3-8b-kernels/batches.jsonl.gz"
W4A16 = "results/h200-qwen3-8b-kernels/w4a16.jsonl.gz"
ATTENTION = "results/h200-qwen3-8b-kernels/attention.jsonl.gz"
HEADS = "results/h200-qwen3-8b-kernels/heads.jsonl.gz"
TWO_STARTS = "results/h200-qwen3-8b-sweep/weight-only.jsonl.gz"


@pytest.mark.parametrize(
    ("results", "after", "cells"),
    [
        (KERNELS, "", 16 * (5 + 6)),
        (AGAIN, ", again", 5 * (1 + 1)),
        (BATCHES, ", batches", 16 * 3),
        (TWO_STARTS, ", two starts", 16 * (2 + 3)),
        (ATTENTION, ", with attention", 7 * (2 + 4)),
    ],
)
def test_what_our_kernels_gain_is_what_the_rows_say(
    results: str, after: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (group,) = make_report(ReportConfig(results=[results])).groups
    gains = {(gain.scenario, gain.candidate): gain.speedup for gain in gain_records(group)}
    workloads = {workload.name: workload for workload in group.workloads}
    checked = 0
    for (first, *names), *lines in tables(RESULTS):
        for line in lines if first in (OURS + after, OVER_BF16 + after) else []:
            (workload,) = re.findall(r"`(\w+)`", line[0])
            for name, cell in zip(names, line[1:], strict=True):
                candidate = f"{name.strip('`')} (kernels=auto)"
                if first.startswith(OURS):
                    gain = gains.get((workload, candidate))
                    assert cell == ("-" if gain is None else short(speedup(gain)))
                else:
                    found = workloads[workload]
                    entry = found.of(candidate) or found.of(name.strip("`"))
                    assert entry is not None
                    assert cell == speedup(speedup_of(entry))
                checked += 1
    assert checked == cells


def test_w4a16_on_vllms_own_kernels_is_what_the_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (group,) = make_report(ReportConfig(results=[W4A16])).groups
    gains = {gain.scenario: gain.speedup for gain in gain_records(group)}
    (_, *lines) = next(t for t in tables(RESULTS) if t[0][0] == "requests at once")
    for requests, *cells in lines:
        name = f"batch_{requests}"
        (workload,) = [one for one in group.workloads if one.name == name]
        entries = [workload.of(name) for name in ("w4a16_gptq (kernels=auto)", "w4a16_gptq")]
        over_bf16 = [speedup(speedup_of(entry)) for entry in entries if entry is not None]
        assert cells == [*over_bf16, speedup(gains[name])]
    assert len(lines) == 9


def test_the_tokens_of_8_bit_heads_are_what_the_rows_say() -> None:
    rows, faults = read(ROOT / HEADS)
    assert not faults
    times: dict[tuple[str, bool], dict[str, list[float]]] = {}
    for row in rows:
        assert isinstance(row, SpeedRow)
        overlaps = "one_token_overlap" in str(row.environment.engine_options["kernels"])
        scenarios = times.setdefault((row.checkpoint, overlaps), {})
        scenarios.setdefault(row.measure, []).append(1e3 * (row.values.tpot_median_s or 0.0))
    setups = [
        ("fp8_dynamic", False), ("fp8_head", False), ("w4a16_gptq", False),
        ("w4a16_head_int8", False), ("fp8_dynamic", True),
    ]  # fmt: skip
    header, *lines = next(t for t in tables(RESULTS) if t[0][0] == "milliseconds a token")
    for setup, (_, *cells) in zip(setups, lines, strict=True):
        found = times.pop(setup)
        medians = [found.get(name.strip("`")) for name in header[1:]]
        assert cells == ["not run" if m is None else f"{statistics.median(m):.2f}" for m in medians]
    assert times == {}


def test_the_published_kernel_grid_is_what_the_rows_say(tmp_path: Path) -> None:
    rows, faults = read(VPTQ / "kernels.jsonl.gz")
    assert not faults
    shown = write_tables([row for row in rows if isinstance(row, KernelRow)], tmp_path)
    assert (tmp_path / "kernels.md").read_text() == (VPTQ / "kernels.md").read_text()
    ratios = {"4096 + 256": 0, "4096 + 512": 0, "8192 + 256": 0, "8192 + 512": 0, "early table": 0}
    text = " ".join(RESULTS.read_text().split())
    assert "in all 150 with a cold cache (median ratio 0.54, largest 0.76)" in text
    assert "150 of 150 lines with a cold cache (median ratio 0.54, largest 0.76)" in summary(shown)
    for header, *lines in tables(RESULTS):
        for line in lines if header[1:] == list(ratios) else []:
            for books, cell in zip(header[1:], line[1:], strict=True):
                ratios[books] += 1
                assert cell == median_ratios(shown, int(line[0].replace(",", "")), books)
    assert set(ratios.values()) == {6}


def median_ratios(shown: list[Line], rows: int, books: str) -> str:
    """Ours and the published ratio over five widths, as the document has them."""
    source = "vptq_early" if books == "early table" else "vptq_codebooks"
    main, residual = (8192, 256) if books == "early table" else map(int, books.split(" + "))
    ours, published = [], []
    for line in shown:
        settings = line.row.settings
        key = (settings.out_features, settings.main_centroids, settings.residual_centroids)
        if line.published and line.published.source == source and key == (rows, main, residual):
            ours.append(line.row.values.ratio or 0.0)
            published.append(line.published.ratio)
    assert len(ours) == 5
    return f"{statistics.median(ours):.2f} ({statistics.median(published):.2f})"
