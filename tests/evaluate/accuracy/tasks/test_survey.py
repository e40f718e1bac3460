"""The harness in its own interpreter, asked about a model and about damage done on purpose."""

import json
import random
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from conf.schema.text import TextSource
from conf.text import documents
from evaluate.accuracy.divergence import BROKEN, LOSS
from evaluate.accuracy.tasks.harness import INTERPRETER, Harness, tasks
from evaluate.results.results_file import read
from evaluate.results.rows import TaskAccuracyRow
from tests.conftest import Run

TASKS = Path(__file__).parent
GIVEN, ASKED = 16, 8  # words of a text
TINY = ["evaluate", "model=tiny", "accuracy=lm_eval", "accuracy.limit=null"]
LITTLE_MEMORY = {"VLLM_CPU_KVCACHE_SPACE": "1"}


def write_tasks(folder: Path) -> None:
    """The task files, and questions about text that calibration never sees."""
    shutil.copytree(TASKS, folder, dirs_exist_ok=True)
    chance = random.Random(0)
    questions = []
    for document in documents(TextSource(), "evaluation"):
        words = str(document).split()[: GIVEN + ASKED]
        if len(words) < GIVEN + ASKED:
            continue
        text, right = " ".join(words[:GIVEN]), words[GIVEN:]
        orders = [right, *(chance.sample(right, ASKED) for _ in range(3))]
        places = chance.sample(range(4), 4)
        choices = [" ".join(orders[place]) for place in places]
        answer = places.index(0)
        questions.append({"text": text, "word": right[0], "choices": choices, "answer": answer})
    lines = [json.dumps(question) + "\n" for question in questions]
    (folder / "continuations.jsonl").write_text("".join(lines))


@pytest.mark.slow
def test_damage_done_on_purpose_is_seen_question_by_question(
    tiny: tuple[ModelConfig, Path], command_here: Run, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "ours")
    zeroed = Path(shutil.copytree(tiny[1], tmp_path / "zeroed"))
    weights = load_file(zeroed / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"].mul_(0)
    save_file(weights, zeroed / "model.safetensors", {"format": "pt"})
    command = [
        *TINY, f"checkpoints=[{zeroed}]", "accuracy.min_recovery=0.95",
        "accuracy.tasks=[ours/continuations.yaml,ours/next_word.yaml]",
    ]  # fmt: skip

    result = command_here(*command, "side_by_side=2", **LITTLE_MEMORY)
    assert result.returncode == 4, result.stderr
    assert "zeroed: lm_eval:continuations: accuracy: " in result.stderr
    assert "lost question" in result.stdout
    were_asked_together(result.stderr)
    found = judged(tmp_path)
    original = found["original", "continuations"]
    assert original.values.score > 2 * original.values.chance_score
    assert original.environment.versions["lm-eval"]
    assert found["original", "next_word"].values.metric == "exact_match,first_word"
    damaged = found["zeroed", "continuations"].values
    assert damaged.verdict in (LOSS, BROKEN)
    assert damaged.p_value < 0.01
    assert damaged.lost > damaged.gained
    assert damaged.lost_questions[0].question
    for row in found.values():
        settings = row.settings.content()
        kept = tmp_path / settings["samples"] / f"{settings['task']}.jsonl"
        assert len(kept.read_text().splitlines()) >= row.values.questions
        assert row.startup.content() == {}, "two starts at once say nothing about one"

    again = command_here(*command, **LITTLE_MEMORY)  # side_by_side is in no key
    assert again.returncode == 4, "a gate stays shut"
    assert "4 runs are there already" in again.stderr
    assert "loading" not in again.stderr
    assert judged(tmp_path).keys() == found.keys()


def were_asked_together(said: str) -> None:
    """Both servers had started when the first question was asked."""
    logs = [line for line in said.splitlines() if "(log in " in line]
    assert len({line.rpartition("(log in ")[2] for line in logs}) == len(logs) == 4
    loading = [said.index(f"{name}: loading in") for name in ("original", "zeroed")]
    assert max(loading) < said.index("original: continuations: ")


def judged(folder: Path) -> dict[tuple[str, str], TaskAccuracyRow]:
    rows = read(folder / "results.jsonl")[0]
    rows = [row for row in rows if isinstance(row, TaskAccuracyRow)]
    found = {(row.checkpoint, row.settings.content()["task"]): row for row in rows}
    assert len(found) == len(rows) == 4
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["accuracy.tasks=[nowhere.yaml]"], "accuracy.tasks: nowhere.yaml cannot be read"),
        (["accuracy.tasks=[]"], "name the tasks"),
        (["accuracy.limit=0"], "accuracy.limit=0: must be at least 1"),
        (["accuracy.fewshot=-1"], "accuracy.fewshot=-1: must be at least 0"),
        (["engine=transformers"], "needs vLLM's server"),
        (["engine=vllm_server", "engine.url=http://here"], "engine.url names a running one"),
    ],
)
def test_bad_input_is_one_message(command_here: Run, arguments: list[str], expected: str) -> None:
    result = command_here(*TINY, *arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_its_interpreter_it_says_what_makes_one(command_here: Run) -> None:
    result = command_here(*TINY, **{INTERPRETER: "/nowhere/python"})
    assert result.returncode == 2
    assert "`make setup-lm-eval`" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_wrong_name_and_missing_data_are_known_before_a_server_starts(
    tiny: tuple[ModelConfig, Path], command_here: Run, tmp_path: Path
) -> None:
    unknown = command_here(*TINY, "checkpoints=[]", "accuracy.tasks=[arc_eas]")
    assert unknown.returncode == 2
    assert "the harness has no task 'arc_eas'. Did you mean arc_easy" in unknown.stderr
    task = (TASKS / "continuations.yaml").read_text()
    (tmp_path / "ours.yaml").write_text(task.replace("continuations.jsonl", "gone.jsonl"))
    missing = command_here(*TINY, "checkpoints=[]", "accuracy.tasks=[ours.yaml]")
    assert missing.returncode == 3
    assert "gone.jsonl" in missing.stderr
    for result in (unknown, missing):
        assert "loading in vllm_server" not in result.stderr


def test_a_task_is_known_by_its_file_and_data(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    path = tmp_path / "continuations.yaml"
    (task,) = tasks([str(path)])
    assert (task.name, task.folder) == ("continuations", str(tmp_path))
    with (tmp_path / "continuations.jsonl").open("a") as data:
        data.write("\n")
    assert tasks([str(path)])[0].sha256 != task.sha256
    path.write_text(path.read_text() + "process_docs: !function utils.process\n")
    assert tasks([str(path)])[0].name == "continuations"
    path.write_text("dataset_path: json\n")
    with pytest.raises(QuantlineError, match="does not name its task"):
        tasks([str(path)])
    with pytest.raises(QuantlineError, match="two tasks are called gsm8k"):
        tasks(["gsm8k", "gsm8k"])


def test_a_harness_that_dies_is_a_fault_of_the_world(tmp_path: Path) -> None:
    dead = tmp_path / "python"
    dead.write_text("#!/bin/sh\necho 'MemoryError: no more' >&2\nexit 7\n")
    dead.chmod(0o755)
    harness = Harness(dead, tmp_path / "log", lambda *_: None)
    with pytest.raises(QuantlineError, match="lm-eval stopped with 7: MemoryError") as caught:
        harness.load(tasks(["gsm8k"]))
    assert caught.value.exit_code == 3
    assert "MemoryError" in (tmp_path / "log").read_text()
