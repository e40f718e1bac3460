"""At least as good, worse, or not known: by thresholds on whole intervals."""

from pathlib import Path

import pytest

from conf.errors import GATE_FAILED, UNDECIDED
from evaluate.gate import Finding, Verdict, failure, quality_finding, speed_finding
from evaluate.report.decide.quality import Quality
from evaluate.results.significance import Ratio
from tests.conftest import Run
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

STEADY = [1.0, 1.001, 0.999]
GOOD, WORSE, UNKNOWN = Verdict.GOOD, Verdict.WORSE, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("ratio", "is_ranked", "verdict"),
    [
        (Ratio(1.0, 0.98, 1.02), True, GOOD),
        (Ratio(0.99, 0.97, 1.01), True, UNKNOWN),
        (Ratio(0.96, 0.94, 0.979), True, WORSE),
        (Ratio(1.5, 1.4, 1.6), False, UNKNOWN),
        (None, True, UNKNOWN),
    ],
)
def test_a_speed_is_judged_by_its_whole_interval(
    ratio: Ratio | None, is_ranked: bool, verdict: Verdict
) -> None:
    assert speed_finding("w8a8", ratio, is_ranked, 0.98).verdict == verdict


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
    for name, seconds in (("faster", 0.7), ("level", 1.0), ("slower", 1.3)):
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
