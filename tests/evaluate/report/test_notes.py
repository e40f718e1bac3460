"""What a report says of its rows: whose weights they ran on, and where power was short."""

from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.show.notes import findings, notes
from evaluate.results.rows import Row
from tests.evaluate.report.made import Cell, ranked, runs, write

STEADY = [1.0, 1.001, 0.999]


def made_up(checkpoint: str, factor: float = 1.0, sparse: bool = False) -> list[Row]:
    latencies = [factor * latency for latency in STEADY]
    rows = runs(Cell(checkpoint, latencies, weights="random", format="w8a8"))
    for row in rows:
        row.environment = row.environment.with_fields(made_up=1, pruned=sparse)
    return rows


def group_of(rows: list[Row]) -> ComparisonGroup:
    (group,) = ranked(rows)
    return group


def test_weights_that_vllm_made_up_itself_are_said_to_flatter() -> None:
    own = runs(Cell("w8a8", STEADY, weights="random"))
    assert any("mostly zeros" in note for note in notes([group_of(own)], ["r.jsonl"]))
    ours = notes([group_of(made_up("w8a8"))], ["r.jsonl"])
    assert any("spread as trained ones are" in note for note in ours)
    assert not any(
        "random weights" in note
        for note in notes([group_of(runs(Cell("w8a8", STEADY)))], ["r.jsonl"])
    )


def test_pruned_weights_are_no_twins_of_dense_ones() -> None:
    dense, rounded = made_up("w8a8_smooth_gptq"), made_up("w8a8_smooth_ptq", 1.01)
    pruned = made_up("w8a8_sparse", 0.8, sparse=True)
    assert group_of([*dense, *rounded]).noise.starts.members == 2
    assert group_of([*dense, *rounded, *pruned]).noise.starts.members == 2
    assert group_of([*dense, *pruned]).noise.starts.members == 0


def test_the_clock_that_power_left_is_said() -> None:
    rows = runs(Cell("original", STEADY), Cell("w8a8", STEADY, "long_context"))
    for row in rows:
        row.environment.max_sm_clock_mhz = 1980.0
        row.values.sm_clock_mhz = 1584.0 if row.checkpoint == "w8a8" else 1980.0
    where = "most under w8a8 in long_context: to 80%"
    assert findings([group_of(rows)], rows) == [f"the clock is lowered, {where}"]
    for share, said in ((0.4, [f"the power limit lowers the clock, {where}"]), (0.0, [])):
        for row in rows:
            row.values.power_capped_share = share
        assert findings([group_of(rows)], rows) == said
    for row in rows:
        row.values = row.values.with_fields(sm_clock_mhz=1950.0, power_capped_share=0.4)
    assert findings([group_of(rows)], rows) == []


def test_processes_that_waited_for_a_core_are_said() -> None:
    rows = runs(Cell("original", STEADY), Cell("w8a8", STEADY, "long_context"))
    for row in rows:
        row.environment.max_sm_clock_mhz = 1980.0
        row.values.cpu_waiting_share = 0.34 if row.checkpoint == "w8a8" else 0.02
    (waiting,) = findings([group_of(rows)], rows)
    assert "waited for a core, most under w8a8 in long_context: for 34% of the time" in waiting
    for row in rows:  # without a GPU the engine's own threads wait for each other
        row.environment.max_sm_clock_mhz = None
    assert findings([group_of(rows)], rows) == []


def test_other_processes_on_the_cores_are_said() -> None:
    rows = runs(Cell("original", [2.0, 2.0, 2.01]), Cell("w8a8", [1.0, 1.0, 1.01]))
    for row in rows:
        row.environment.max_sm_clock_mhz = None
        row.values.cpu_others_share = 0.43 if row.checkpoint == "w8a8" else 0.02
    (busy,) = findings([group_of(rows)], rows)
    assert "other processes took CPU time, most in start 1 of w8a8: 43% of the cores'" in busy
    for row in rows:
        row.values.cpu_others_share = 0.02
    assert findings([group_of(rows)], rows) == []
    for row in rows:  # a GPU does not wait for them
        row.environment.max_sm_clock_mhz = 1980.0
        row.values.cpu_others_share = 0.43
    assert findings([group_of(rows)], rows) == []


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.0, 0.03], "3.0%"),  # by start
        ([0.025, 0.0], "2.5%"),
        ([0.015, 0.019], None),
    ],
)
def test_the_start_that_lost_most_cpu_time_is_said(shares: list[float], said: str | None) -> None:
    rows = runs(Cell("original", [2.0, 2.0, 2.01]))
    again = runs(Cell("original", [2.0, 2.0, 2.01]))
    for start, members in enumerate((rows, again)):
        for row in members:
            row.start, row.values.cpu_stolen_share = start, shares[start]
    found = findings([group_of([*rows, *again])], [*rows, *again])
    start = shares.index(max(shares)) + 1
    expected = f"took CPU time, most in start {start} of original: {said} of what was asked for"
    assert [expected in line for line in found] == ([] if said is None else [True])


def test_lost_cpu_time_counts_by_the_length_of_runs_and_by_machine() -> None:
    """One tick is much of a short run, and little of a start."""
    short, long = Cell("w8a8", [0.1, 0.1]), Cell("w8a8", [3.0, 3.0], "long_context")
    rows = runs(short, long)
    for row in rows:
        row.values.cpu_stolen_share = 0.1 if row.measure == "interactive" else 0.0
    assert findings([group_of(rows)], rows) == []
    assert findings([group_of(rows[:2])], rows[:2]) == [], "too short to tell"
    rows = runs(Cell("w8a8", [3.0, 3.0], card="a"), Cell("w8a8", [3.0, 3.0], "base", card="b"))
    for row in rows:
        row.values.cpu_stolen_share = 0.03 if row.environment.card == "b" else 0.0
    (said,) = findings([group_of(rows)], rows)
    assert "start 1 of w8a8: 3.0%" in said


def test_a_gpu_that_waits_for_its_host_is_said() -> None:
    rows = runs(Cell("original", STEADY), Cell("original", STEADY, "base"), Cell("w8a8", STEADY))
    shares = {("original", "interactive"): 0.28, ("original", "base"): 0.66}
    for row in rows:
        row.environment.max_sm_clock_mhz = 1980.0
        row.limit.decode_share = shares.get((row.checkpoint, row.measure), 0.11)
    (said,) = findings([group_of(rows)], rows)
    assert said.startswith("the GPU waits in interactive: the original decodes at 28% of")
    assert "most likely the host, sets" in said
    rows[0].kernels = {"Unquantized MoE": "TRITON"}
    (said,) = findings([group_of(rows)], rows)
    assert "the host or the kernels of the experts, sets" in said
    for row in rows:  # many requests at once are another matter
        row.settings.batch = 64
    assert findings([group_of(rows)], rows) == []
    for row in rows:
        row.settings.batch = 1
    for row in rows:
        row.limit.decode_share = 0.5
    assert findings([group_of(rows)], rows) == []
    for row in rows:  # a CPU has no clock of a GPU
        row.environment.max_sm_clock_mhz, row.limit.decode_share = None, 0.1
    assert findings([group_of(rows)], rows) == []


def test_older_made_up_weights_do_not_count_beside_newer_ones(tmp_path: Path) -> None:
    old = runs(Cell("w8a8", [0.5, 0.5, 0.5], weights="random"), Cell("fp8", STEADY))
    path = write(tmp_path / "results.jsonl", [*old, *made_up("w8a8")])
    report = make_report(ReportConfig(results=[str(path)]))
    (workload,) = report.groups[0].workloads
    medians = {entry.candidate: entry.median("latency_s") for entry in workload.entries}
    assert medians == {"w8a8": 1.0, "fp8": 1.0}
    assert any("3 rows ran on weights made up in an older way" in note for note in report.notes)


def test_who_ran_on_another_machine_than_the_original_is_named() -> None:
    rows = runs(Cell("original", STEADY), Cell("w8a8", STEADY), Cell("w4a16", STEADY))
    for row in rows:
        read = 4428.0 if row.checkpoint == "w4a16" else 4250.0
        row.limit = row.limit.with_fields(rates="measured", bandwidth_gb_s=read)
    (said,) = [note for note in notes([group_of(rows)], ["r.jsonl"]) if "another machine" in note]
    assert "4,250, 4,428 GB/s" in said
    assert said.endswith("all: w4a16; intervals allow for 3.5% between machines")
    alike = notes([group_of([row for row in rows if row.checkpoint != "w4a16"])], ["r.jsonl"])
    assert not any("another machine" in note for note in alike)


def test_ties_that_a_second_start_would_decide_come_with_the_command() -> None:
    near = [1.025 * latency for latency in STEADY]
    (said,) = [
        note
        for note in notes(
            [group_of(runs(Cell("original", near), Cell("w8a8", STEADY)))], ["r.jsonl"]
        )
        if "second start" in note
    ]
    assert "w8a8 in interactive" in said
    assert "python -m evaluate model=qwen3-8b engine=vllm 'scenario=[interactive]'" in said
    assert said.endswith("starts=2 results=r.jsonl")
