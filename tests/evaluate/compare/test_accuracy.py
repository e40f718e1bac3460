"""The accuracy of two files, or two checkpoints: the table, and the gate on it."""

import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import BAD_INPUT, GATE_FAILED, UNDECIDED, QuantlineError
from conf.schema.report import CompareConfig
from evaluate.compare.comparing import compare
from evaluate.results.rows import AccuracyRow, Row, line_content
from tests.conftest import Run
from tests.evaluate.accuracy.made_rows import (
    LATER,
    block_row,
    broken_row,
    original_row,
    quick_row,
    task_row,
)
from tests.evaluate.made_rows import failed_row
from tests.evaluate.report.made import Cell, runs, write

STEADY, FASTER = [1.0, 1.001, 0.999], [0.7, 0.701, 0.699]


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Compares rows with those of a second file, or two checkpoints in them: the exit code, and
    what is said."""

    def compared(first: list[Row], second: list[Row] | None = None, **options: Any) -> Any:
        paths = [write(tmp_path / "first.jsonl", first)]
        if second is not None:
            paths.append(write(tmp_path / "second.jsonl", second))
        try:
            compare(CompareConfig(results=[str(path) for path in paths], **options))
        except QuantlineError as error:
            return error.exit_code, f"{capsys.readouterr()} {error}"
        return 0, str(capsys.readouterr())

    return compared


def test_results_without_runs_are_compared_by_their_accuracy(
    command_here: Run, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", [quick_row("w8", 0.010, 1), task_row("w8", [1] * 30)])
    write(tmp_path / "b.jsonl", [quick_row("w8", 0.004, 2), task_row("w8", [1] * 29 + [0])])
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]", "min_quality=1")
    assert "better" in result.stdout
    assert "questions:arc" in result.stdout
    assert result.returncode == UNDECIDED
    assert "w8 in questions:arc: 96.67% of the first one's quality" in result.stderr
    back = command_here("evaluate.compare", "results=[b.jsonl,a.jsonl]", "min_quality=0.999")
    assert back.returncode == GATE_FAILED
    assert "w8 in quick: 99.5" in back.stderr
    lines = [quick_row("w8", 0.010, 1), quick_row("w4", 0.004, 2)]
    write(tmp_path / "both.jsonl", lines)
    both = ("results=[both.jsonl]", "checkpoints=[w8,w4]", "min_quality=0.99")
    assert command_here("evaluate.compare", *both).returncode == 0
    wrong = command_here("evaluate.compare", "results=[both.jsonl]", "checkpoints=[w8,w5]")
    assert wrong.returncode == BAD_INPUT
    assert "w5" in wrong.stderr


def test_a_gate_on_quality_needs_one_that_was_judged(command_here: Run, tmp_path: Path) -> None:
    for name, seconds in (("a", STEADY), ("b", FASTER)):
        write(tmp_path / f"{name}.jsonl", runs(Cell("w8", seconds)))
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]", "min_quality=0.99")
    assert result.returncode == UNDECIDED
    assert "no accuracy of both was judged alike" in result.stderr


def test_the_originals_of_two_files_decide_nothing(gate: Any) -> None:
    """Every run writes rows of the original, which have no blocks."""
    one, other = quick_row("w8", 0.010, 1), quick_row("w8", 0.0099, 2)
    base = one.values.original_perplexity
    first, second = [original_row(base), one], [original_row(base, LATER), other]
    code, said = gate(first, second, min_quality=0.99)
    assert code == 0, said
    assert "original" not in said
    # Originals alone are no gate.
    assert gate(first[:1], second[:1], min_quality=0.99)[0] == UNDECIDED
    assert gate(first[:1], second[:1])[0] == BAD_INPUT


def test_accuracy_that_only_the_first_has_is_not_known(gate: Any) -> None:
    quick, task = quick_row("w8", 0.010, 1), task_row("w8", [1] * 200)
    newer = quick_row("w8", 0.0099, 2)
    failed = failed_row("w8", "questions:arc", "the server died")
    for second in ([newer], [newer, failed]):
        code, said = gate([quick, task], second, min_quality=0.99)
        assert code == UNDECIDED
        assert "w8 in questions:arc: only the first has it" in said
    assert gate([quick], [newer], min_quality=0.99)[0] == 0
    # Nobody tried another checkpoint in the second file.
    code, said = gate([quick, block_row("w4", 3)], [newer], min_quality=0.99)
    assert code == 0
    assert "in the first only, or under another workload in the second: w4 in quick" in said
    code, said = gate(
        [quick, task, quick_row("w4", 0.0099, 2)], checkpoints=["w8", "w4"], min_quality=0.99
    )
    assert code == UNDECIDED
    assert "w8 in questions:arc: only the first has it" in said


def test_a_checkpoint_that_ran_and_was_not_judged_passes_no_gate(gate: Any) -> None:
    first = [*runs(Cell("w8", STEADY), Cell("w4", STEADY)), quick_row("w8", 0.010, 1)]
    second = [*runs(Cell("w8", FASTER), Cell("w4", FASTER)), quick_row("w8", 0.0099, 2)]
    judged = [block_row("w4", 3)]
    died = [failed_row("w4", "quick", "the engine died")]
    for before, after in (([], []), (judged, []), (judged, died), ([], judged)):
        code, said = gate([*first, *before], [*second, *after], min_quality=0.99)
        assert code == UNDECIDED, (before, after)
        assert "w4" in said


def test_a_recovery_that_was_not_judged_again_is_not_known(gate: Any) -> None:
    first = [quick_row("w8", 0.01, 1), quick_row("w4", 0.01, 3)]
    newer = quick_row("w8", 0.01, 2)
    failed = failed_row("w4", "quick", "the engine died")
    code, said = gate(first, [newer, failed], min_recovery=0.5)
    assert code == UNDECIDED
    assert "w4: its accuracy was not judged" in said
    assert gate(first, [newer, task_row("w4", [1] * 200)], min_recovery=0.5)[0] == 0


def test_another_engine_is_no_comparison(gate: Any) -> None:
    one, other = block_row("w8", 1, engine="vllm"), block_row("w8", 2, engine="transformers")
    code, said = gate([one], [other], min_quality=0.99)
    assert code == UNDECIDED
    assert "w8 in quick: judged in another engine" in said


def test_a_checkpoint_may_be_named_with_its_options(gate: Any) -> None:
    """As cells of the report are named; accuracy rows know the checkpoint alone."""
    cells = [Cell("w8", STEADY), Cell("w8", FASTER, options={"linear_backend": "marlin"})]
    rows = [*runs(*cells, Cell("w4", STEADY)), quick_row("w8", 0.01, 1), quick_row("w4", 0.0099, 2)]
    code, said = gate(
        rows, checkpoints=["w4", "w8 linear_backend=marlin"], min_quality=0.99, min_ratio=0.9
    )
    assert code == 0, said


def test_the_kernels_of_a_named_setup_count(gate: Any) -> None:
    ours = {"kernels": "auto"}
    cells = [Cell("w8", STEADY), Cell("w8", FASTER, options=ours), Cell("w4", STEADY)]
    rows = [
        *runs(*cells),
        block_row("w4", 1, 0.1, engine="vllm"),
        block_row("w8", 2, 0.1, engine="vllm"),
        block_row("w8", 3, 0.3, engine="vllm", engine_options=ours),
    ]
    assert gate(rows, checkpoints=["w4", "w8 kernels=auto"], min_quality=0.99)[0] == GATE_FAILED
    assert gate(rows, checkpoints=["w4", "w8"], min_quality=0.9)[0] == 0


def test_files_of_other_checkpoints_say_how_to_compare_them(gate: Any) -> None:
    first, second = [quick_row("w8", 0.01, 1)], [quick_row("w8_new", 0.01, 2)]
    for threshold in ("min_quality", "min_recovery", "min_ratio"):
        code, said = gate(first, second, **{threshold: 0.9})
        assert code == UNDECIDED
        assert "Give both files and checkpoints=[w8,w8_new]" in said
    code, said = gate(first, second)
    assert code == BAD_INPUT
    assert "there are: w8, w8_new" in said
    named = {"checkpoints": ["w8", "w8_new"], "min_quality": 0.9}
    assert gate([*first, *second], **named)[0] == 0
    failed = failed_row("w2", "quick", "the engine died")
    code, said = gate([*first, failed], checkpoints=["w8", "w2"], min_quality=0.9)
    assert code == UNDECIDED
    assert "w8 in quick: only the first has it" in said


def test_a_broken_second_fails_the_gate(gate: Any) -> None:
    """Also where the first one is broken, too."""
    works, broken = block_row("w8", 1), broken_row("w8", 2, LATER)
    for first, second, wanted in (
        (works, broken, GATE_FAILED),
        (broken_row("w8", 1), broken, GATE_FAILED),
        (broken_row("w8", 1), block_row("w8", 2, time=LATER), 0),
    ):
        assert gate([first], [second], min_quality=0.99)[0] == wanted


def test_an_odd_accuracy_row_is_a_line_that_is_left_out(gate: Any, tmp_path: Path) -> None:
    good: list[AccuracyRow] = [quick_row("w8", 0.01, 1), quick_row("w8", 0.01, 2)]
    count = len(good[0].values.block_losses)
    for odd in (
        {"block_losses": [-1000.0] * count},
        {"block_losses": [1e308] * count},
        {"block_divergences": [0.1] * 3},
        {"block_divergences": []},
    ):
        write(tmp_path / "first.jsonl", [])
        content = line_content(good[1])
        content["values"] = content["values"] | odd
        (tmp_path / "odd.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in (line_content(good[0]), content))
        )
        write(tmp_path / "good.jsonl", good[1:])
        files = [str(tmp_path / name) for name in ("odd.jsonl", "good.jsonl")]
        with pytest.raises(
            QuantlineError, match=r"1 lines were left out, .*odd.jsonl:2: "
        ) as error:
            compare(CompareConfig(results=files, min_quality=0.9))
        assert error.value.exit_code == BAD_INPUT


@pytest.mark.parametrize(("questions", "code"), [(20, UNDECIDED), (2000, 0)])
def test_few_questions_without_a_loss_pass_no_gate(gate: Any, questions: int, code: int) -> None:
    released, new = (task_row("w8", [1] * questions) for _ in range(2))
    new.time = LATER
    assert gate([released], [new], min_quality=0.99)[0] == code


@pytest.mark.parametrize("change", [{"measure": "questions:arc"}, {"engine": "transformers"}, {}])
def test_a_checkpoint_that_is_broken_by_another_measure_passes_no_gate(
    gate: Any, change: dict[str, str]
) -> None:
    good, broken = block_row("w8", 2, time=LATER), broken_row("w8", 3, LATER)
    if "measure" in change:
        broken = task_row("w8", [0] * 30)
        assert broken.values.verdict == "broken"
    elif change:
        broken.environment = broken.environment.with_fields(**change)
    else:
        broken.environment = broken.environment.with_fields(device="another")
    assert gate([block_row("w8", 1)], [good, broken], min_quality=0.9)[0] == GATE_FAILED
