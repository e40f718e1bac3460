"""At least as good, worse, or not known: by thresholds on whole intervals."""

from pathlib import Path

import pytest

from conf.errors import BAD_INPUT, GATE_FAILED, UNDECIDED, QuantlineError
from evaluate.compare.gate import Finding, Verdict, failure, quality_finding, speed_finding
from evaluate.compare.pairs import Metric
from evaluate.report.decide.quality import Quality
from evaluate.results.significance import Ratio
from tests.conftest import Run
from tests.evaluate.made_rows import failed_row, speed_row
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

STEADY = [1.0, 1.001, 0.999]
GOOD, WORSE, UNKNOWN = Verdict.GOOD, Verdict.WORSE, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("ratio", "doubt", "verdict"),
    [
        (Ratio(1.0, 0.98, 1.02), "", GOOD),
        (Ratio(0.99, 0.97, 1.01), "", UNKNOWN),
        (Ratio(0.96, 0.94, 0.979), "", WORSE),
        (Ratio(1.5, 1.4, 1.6), "too much spread", UNKNOWN),
        (None, "", UNKNOWN),
    ],
)
def test_a_speed_is_judged_by_its_whole_interval(
    ratio: Ratio | None, doubt: str, verdict: Verdict
) -> None:
    assert speed_finding("w8a8", ratio, doubt, 0.98).verdict == verdict


@pytest.mark.parametrize(
    ("quality", "verdict"),
    [
        (Quality(0.995, 0.991, 0.999, "no loss seen"), GOOD),
        (Quality(0.995, 0.985, 0.999, "no loss seen"), UNKNOWN),
        (Quality(0.97, 0.96, 0.98, "loss"), WORSE),
        (Quality(0.995, verdict="no loss seen"), GOOD),
        (Quality(verdict="broken"), WORSE),
        (Quality(), UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_a_quality_is_judged_by_its_whole_interval(
    quality: Quality | None, verdict: Verdict
) -> None:
    assert quality_finding("w8a8", quality, 0.99).verdict == verdict


def test_worse_comes_before_not_known() -> None:
    findings = [Finding("a", GOOD, ""), Finding("b", UNKNOWN, "few"), Finding("c", WORSE, "slow")]
    for wanted, code in ((findings, GATE_FAILED), (findings[:2], UNDECIDED)):
        error = failure(wanted)
        assert error is not None
        assert error.exit_code == code
    assert failure(findings[:1]) is None


def made(folder: Path, name: str, seconds: float, *measures: str, recovery: float = 0.999) -> None:
    cells = [Cell("w8a8", [seconds * t for t in STEADY], measure) for measure in measures]
    write(folder / name, [*runs(*cells), accuracy_row("w8a8", recovery, "no loss seen")])


def test_the_exit_code_says_whether_it_is_as_good(command_here: Run, tmp_path: Path) -> None:
    made(tmp_path, "old.jsonl", 1.0, "interactive", "base")
    for name, seconds in (("faster", 0.7), ("level", 1.0002), ("slower", 1.3)):
        made(tmp_path, f"{name}.jsonl", seconds, "interactive", "base")
    made(tmp_path, "less.jsonl", 0.7, "interactive")
    made(tmp_path, "lossy.jsonl", 0.7, "interactive", "base", recovery=0.95)

    def code(new: str, *thresholds: str) -> tuple[int, str]:
        result = command_here("evaluate.compare", f"results=[old.jsonl,{new}.jsonl]", *thresholds)
        return result.returncode, result.stderr

    assert code("slower")[0] == 0  # without a threshold there is no gate
    assert code("faster", "min_ratio=0.98", "min_recovery=0.99")[0] == 0
    assert code("level", "min_ratio=0.9")[0] == 0
    returned, said = code("slower", "min_ratio=0.98")
    assert returned == GATE_FAILED
    assert "w8a8 in interactive: 0.769 times as fast" in said
    assert code("level", "min_ratio=1")[0] == UNDECIDED
    returned, said = code("less", "min_ratio=0.98")
    assert returned == UNDECIDED
    assert "w8a8 in base: only the first has it" in said
    returned, said = code("lossy", "min_recovery=0.99")
    assert returned == GATE_FAILED
    assert "95.00% of the quality is left" in said


def test_what_is_no_comparison_passes_no_gate(command_here: Run, tmp_path: Path) -> None:
    """The same file or checkpoint twice, a copy, or a checkpoint that failed in the second file."""
    made(tmp_path, "old.jsonl", 1.0, "interactive", "base")
    made(tmp_path, "new.jsonl", 0.5, "interactive", "base")
    (tmp_path / "link.jsonl").symlink_to("old.jsonl")
    old, new = ((tmp_path / name).read_bytes() for name in ("old.jsonl", "new.jsonl"))
    (tmp_path / "copy.jsonl").write_bytes(old)
    failed = failed_row("w8a8", "interactive", "the engine died")
    others = runs(Cell("original", STEADY))
    write(tmp_path / "first.jsonl", [*others, *runs(Cell("w8a8", STEADY))])
    write(tmp_path / "failed.jsonl", [*runs(Cell("original", [0.5, 0.501, 0.499])), failed])

    def code(*arguments: str) -> tuple[int, str]:
        result = command_here("evaluate.compare", *arguments, "min_ratio=0.5")
        return result.returncode, result.stderr

    for same in ("results=[old.jsonl,old.jsonl]", "results=[old.jsonl,link.jsonl]"):
        returned, said = code(same)
        assert returned == BAD_INPUT
        assert "is the same file twice" in said
    returned, said = code("results=[old.jsonl]", "checkpoints=[w8a8,w8a8]")
    assert returned == BAD_INPUT
    assert "is the same one twice" in said
    returned, said = code("results=[old.jsonl,copy.jsonl]")
    assert returned == UNDECIDED
    assert "both have the same runs" in said
    returned, said = code("results=[first.jsonl,failed.jsonl]")
    assert returned == UNDECIDED
    assert "w8a8 in interactive: only the first has it" in said
    assert new != old
    assert code("results=[old.jsonl,new.jsonl]")[0] == 0


def test_two_originals_alone_pass_no_gate(command_here: Run, tmp_path: Path) -> None:
    """The new checkpoint has another name than the released one."""
    for name, checkpoint, factor in (("old", "w8a8", 1.0), ("new", "w8a8_new", 4.0)):
        cells = [Cell("original", [factor / 2 * t for t in (2.0, 2.002, 1.998)])]
        cells.append(Cell(checkpoint, [factor * t for t in STEADY]))
        write(tmp_path / f"{name}.jsonl", runs(*cells))
    result = command_here("evaluate.compare", "results=[old.jsonl,new.jsonl]", "min_ratio=0.1")
    assert result.returncode == UNDECIDED
    assert "w8a8: in the first only; the second has w8a8_new" in result.stderr
    named = ("results=[old.jsonl,new.jsonl]", "checkpoints=[w8a8,w8a8_new]", "min_ratio=0.9")
    assert command_here("evaluate.compare", *named).returncode == GATE_FAILED


def test_checkpoints_on_two_devices_are_not_compared(command_here: Run, tmp_path: Path) -> None:
    rows = runs(Cell("w8a8", STEADY), Cell("fp8", [0.5, 0.501, 0.499]))
    for row in rows:
        if row.checkpoint == "fp8":
            row.environment.device = "NVIDIA A100"
    write(tmp_path / "results.jsonl", rows)
    result = command_here("evaluate.compare", "checkpoints=[w8a8,fp8]", "min_ratio=0.9")
    assert result.returncode == UNDECIDED
    assert "they ran on different devices" in result.stderr


def test_a_checkpoint_that_lacks_a_workload_is_not_as_good(
    command_here: Run, tmp_path: Path
) -> None:
    cells = [Cell("w8a8", STEADY), Cell("w8a8", STEADY, "base"), Cell("fp8", [0.5, 0.501, 0.499])]
    write(tmp_path / "results.jsonl", runs(*cells))
    result = command_here("evaluate.compare", "checkpoints=[w8a8,fp8]", "min_ratio=0.9")
    assert result.returncode == UNDECIDED
    assert "w8a8 in base: only the first has it" in result.stderr


def test_more_is_better_for_a_rate(command_here: Run, tmp_path: Path) -> None:
    made(tmp_path, "old.jsonl", 1.0, "interactive")
    made(tmp_path, "slow.jsonl", 2.0, "interactive")

    def compared(*arguments: str) -> tuple[int, str]:
        result = command_here("evaluate.compare", "results=[old.jsonl,slow.jsonl]", *arguments)
        return result.returncode, result.stdout + result.stderr

    returned, said = compared("value=overall_tokens_per_s", "min_ratio=0.9")
    assert returned == GATE_FAILED
    assert "0.500 times as fast" in said
    assert compared("value=ttft_last_s", "min_ratio=0.9")[0] == GATE_FAILED
    assert compared("value=ttft", "min_ratio=0.9")[0] == BAD_INPUT


@pytest.mark.parametrize("name", ["input_tokens", "sm_clock_mhz", "prefix_hits", "overlap_share"])
def test_a_value_that_says_nothing_of_better_is_refused(name: str) -> None:
    with pytest.raises(QuantlineError, match="neither more nor less of it is better"):
        Metric(name).check({name, "latency_s"})


def test_where_requests_arrive_by_themselves_their_latency_counts(
    command_here: Run, tmp_path: Path
) -> None:
    """Such a run takes as long as requests arrive: its duration says nothing of the engine."""
    for name, seconds in (("old", 1.0), ("slow", 2.0)):
        rows = [
            speed_row(
                checkpoint="w8a8",
                measure="serving",
                repeat=repeat,
                key=f"{name} {repeat}"[:-1],
                time=f"2026-01-01T00:00:0{repeat}+00:00",
                values={"latency_s": 60.0, "request_latency_median_s": seconds * factor},
                settings={"rate": 4.0, "requests": 240, "input_tokens": 8, "output_tokens": 8},
                environment={"device": "cpu", "engine": "vllm_server"},
            )
            for repeat, factor in enumerate(STEADY)
        ]
        write(tmp_path / f"{name}.jsonl", rows)
    result = command_here("evaluate.compare", "results=[old.jsonl,slow.jsonl]", "min_ratio=0.9")
    assert result.returncode == GATE_FAILED, result.stderr
    assert "w8a8 in serving: 0.500 times as fast" in result.stderr
