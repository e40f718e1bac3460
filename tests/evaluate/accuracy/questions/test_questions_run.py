"""accuracy=questions from the command to the rows, on made-up packages."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from conf.cache import cache_root
from conf.schema.model import ModelConfig
from evaluate.accuracy.verdicts import VERDICTS
from evaluate.results.results_file import read
from evaluate.results.rows import TaskAccuracyRow
from tests.conftest import Run
from tests.evaluate.accuracy.questions.made_questions import use_made_packages

QUESTIONS = ["evaluate", "model=tiny", "accuracy=questions", "engine=transformers"]


@pytest.mark.slow
def test_questions_are_judged_one_by_one_against_the_original(
    tiny: tuple[ModelConfig, Path],
    command_here: Run,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_made_packages(index, monkeypatch)
    zeroed = Path(shutil.copytree(tiny[1], tmp_path / "zeroed"))
    weights = load_file(zeroed / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"].mul_(0)
    save_file(weights, zeroed / "model.safetensors", {"format": "pt"})
    names = ["mmlu", "arc_easy", "hellaswag", "lambada", "mbpp"]
    command = [
        *QUESTIONS, f"checkpoints=[{zeroed}]", f"accuracy.tasks=[{','.join(names)}]",
        "accuracy.limit=8", "accuracy.seed=3",
    ]  # fmt: skip
    result = command_here(*command)
    assert result.returncode == 0, result.stderr
    assert "mbpp left out" in result.stderr
    rows = [row for row in read(tmp_path / "results.jsonl")[0] if isinstance(row, TaskAccuracyRow)]
    judged = {(row.checkpoint, row.task): row for row in rows}
    assert judged.keys() == {(c, n) for c in ("original", "zeroed") for n in names[:-1]}
    for (checkpoint, name), row in judged.items():
        assert row.measure == f"questions:{name}"
        assert row.environment.engine == "transformers"
        assert row.values.questions == 8
        assert (row.values.verdict in VERDICTS) == (checkpoint == "zeroed")
        settings = row.settings.content()
        assert settings["fewshot"] == (5 if name == "mmlu" else 0)
        assert len((tmp_path / settings["samples"] / f"{name}.jsonl").read_text().splitlines()) == 8
    assert (cache_root() / "questions" / "huggingface" / "datasets").is_dir()
    assert "zeroed" in result.stdout

    again = command_here(*command)
    assert "8 runs are there already" in again.stderr
    assert "loading" not in again.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["accuracy.tasks=[gsm9k]"], "accuracy.tasks: there is no 'gsm9k'. Did you mean gsm8k?"),
        (["accuracy.tasks=[]"], "accuracy=questions: name the tasks"),
        (["accuracy.limit=0"], "accuracy.limit=0: must be at least 1"),
        (["accuracy=lm_eval", "accuracy.run_code=true"], "run_code=true works only with"),
        (["engine=vllm_server", "engine.url=http://here"], "accuracy=questions starts a server"),
    ],
)
def test_bad_input_is_one_message(command_here: Run, arguments: list[str], expected: str) -> None:
    result = command_here(*QUESTIONS, *arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1
