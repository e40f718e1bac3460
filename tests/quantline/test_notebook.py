"""The notebook in docs: its cells run in order, on the CPU, and give what its text says."""

import json
from pathlib import Path
from typing import Any

import pytest

from quantline.api import Checkpoint, Evaluation, Recommendation
from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "api.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == len(code_cells()) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny", "programs_here")
def test_the_cells_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in code_cells():
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
    checkpoint, evaluation = names["checkpoint"], names["evaluation"]
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.path == Path("checkpoints/tiny/w8a8_smooth_gptq")
    assert checkpoint.manifest.recipe == "w8a8_smooth_gptq"
    assert isinstance(evaluation, Evaluation)
    assert {(row.checkpoint, row.repeat) for row in evaluation.rows} == {
        (name, repeat) for name in ("original", "w8a8_smooth_gptq") for repeat in range(3)
    }
    assert all(median.median > 0 for median in evaluation.medians)
    assert len(evaluation.medians) == 2
    assert isinstance(names["recommendation"], Recommendation)
    assert len(names["recommendation"].answers) == 1
    printed = capsys.readouterr().out
    assert "there is no 'w8a8_smoth_gptq'. Did you mean w8a8_smooth_gptq?" in printed
    assert names["recommendation"].best.headline in printed
