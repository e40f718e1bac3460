"""Questions from packages: what is asked, what is sampled, and packages that are bad."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.errors import QuantlineError
from conf.schema.commands import AccuracyConfig
from evaluate.accuracy.questions import prepare
from evaluate.accuracy.questions.catalog import TASKS
from evaluate.accuracy.questions.packages import Package
from evaluate.accuracy.questions.prepare import prepared_tasks
from evaluate.accuracy.questions.readers import REQUESTS, TABLES
from evaluate.accuracy.tasks.events import Task
from tests.evaluate.accuracy.questions.made_questions import COUNT, Files, use_made_packages

HARNESS = Path("/harness/tasks")
ALL = tuple(TASKS)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepare, "check_sandbox", lambda: None)
    return tmp_path / "cache"


def prepared(*names: str, **options: Any) -> dict[str, Task]:
    accuracy = AccuracyConfig(kind="questions", tasks=list(names), **options)
    return {task.name: task for task in prepared_tasks(accuracy, HARNESS)}


def questions(task: Task) -> list[dict[str, Any]]:
    lines = (Path(task.folder) / "questions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def definition(task: Task) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(Path(task.folder, f"{task.name}.yaml").read_text())
    return content


def test_every_task_is_read_out_of_its_package(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_packages(index, monkeypatch)
    tasks = prepared(*ALL, run_code=True)
    assert list(tasks) == list(ALL)
    for name, task in tasks.items():
        assert Path(task.folder).parent == own_cache / "questions"
        assert len(questions(task)) == (2 * COUNT if name == "mmlu" else COUNT)
        stated = definition(task)
        assert stated["dataset_path"] == "json"
        assert stated.get("include", "").startswith(str(HARNESS)) != task.runs_code
    assert questions(tasks["arc_easy"])[4] == {
        "question": "What is 4?", "answerKey": "B",
        "choices": {"text": ["one", "two", "three"], "label": ["A", "B", "C"]},
    }  # fmt: skip
    assert questions(tasks["lambada"])[3]["text"].endswith("line 3 is read")
    assert (own_cache / "questions/nltk/tokenizers/punkt_tab/english").is_dir()
    again = prepared(*ALL, run_code=True)
    assert again == tasks


def test_examples_of_mmlu_are_of_the_same_subject(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_packages(index, monkeypatch)
    task = prepared("mmlu", fewshot=1)["mmlu"]
    first = questions(task)[0]
    example = "What is 0?\nA. a\nB. b\nC. c\nD. d\nAnswer: A\n\n"
    assert first["text"] == f"{example}What is 0?\nA. a\nB. b\nC. c\nD. d\nAnswer:"
    assert {question["subject"] for question in questions(task)} == {"algebra", "world history"}
    stated = definition(task)
    assert (stated["num_fewshot"], stated["metadata"]["num_fewshot"]) == (0, 1)
    assert definition(prepared("gsm8k", fewshot=3)["gsm8k"])["num_fewshot"] == 3


def test_prepared_questions_may_come_from_another_machine(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_packages(index, monkeypatch)
    accuracy = AccuracyConfig(kind="questions", tasks=["gsm8k"])
    here = prepared_tasks(accuracy, HARNESS)
    shutil.rmtree(own_cache / "questions" / "wheels")
    there = prepared_tasks(accuracy, Path("/elsewhere"))
    assert there == here
    assert definition(there[0])["include"] == "/elsewhere/gsm8k/gsm8k-cot.yaml"


def test_a_sample_is_fixed_by_its_seed(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_packages(index, monkeypatch)
    one, same, other = (prepared("gsm8k", limit=5, seed=seed)["gsm8k"] for seed in (1, 1, 2))
    assert one == same
    assert len(questions(one)) == 5
    assert questions(one) != questions(other)
    assert one.sha256 != other.sha256
    everything = questions(prepared("gsm8k", limit=None)["gsm8k"])
    places = [everything.index(question) for question in questions(one)]
    assert places == sorted(places)
    assert places != list(range(5))
    assert len(questions(prepared("gsm8k", limit=10**6)["gsm8k"])) == COUNT


def test_a_chat_continues_the_code(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_packages(index, monkeypatch)
    plain = prepared("humaneval", run_code=True)["humaneval"]
    chat = prepared("humaneval", run_code=True, chat_template=True)["humaneval"]
    assert plain.sha256 != chat.sha256
    assert "gen_prefix" not in definition(plain)
    assert definition(chat)["gen_prefix"].endswith("{{prompt}}")


def test_programs_are_left_out_unless_they_may_run(
    index: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_made_packages(index, monkeypatch)
    assert list(prepared("humaneval", "gsm8k", "mbpp")) == ["gsm8k"]
    said = capsys.readouterr().err
    assert "humaneval and mbpp left out: answers are programs" in said
    with pytest.raises(QuantlineError, match="no task is left"):
        prepared("humaneval")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["mmul"], {}, "accuracy.tasks: there is no 'mmul'. Did you mean mmlu. Known: arc_chall"),
        (["gsm8k", "lambada"], {"fewshot": 5}, "accuracy.fewshot=5: lambada has none"),
        (["mmlu"], {"fewshot": 6}, "accuracy.fewshot=6: mmlu has 5"),
    ],
)
def test_bad_input_is_known_before_anything_is_downloaded(
    names: list[str], options: dict[str, int], message: str, own_cache: Path, index: Path
) -> None:
    with pytest.raises(QuantlineError, match=message) as caught:
        prepared(*names, **options)
    assert caught.value.exit_code == 2
    assert not own_cache.exists()


def kept(cache: Path, task: str) -> list[Path]:
    """The files of a task that the cache holds."""
    return [path for path in (cache / "questions").glob(f"*{task}*") if path.suffix != ".lock"]


def test_a_package_that_is_not_there_or_has_another_hash(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use_made_packages(index, monkeypatch)["gsm8k"]
    shutil.rmtree(own_cache)
    for package, message in (
        (Package("nowhere==1.0", "0" * 64), "nowhere==1.0 could not be downloaded: no package"),
        (replace(made, sha256="0" * 64), "the hash is .*, 0000.* is expected; not used"),
    ):
        monkeypatch.setitem(TASKS, "gsm8k", replace(TASKS["gsm8k"], package=package))
        with pytest.raises(QuantlineError, match=message) as caught:
            prepared("gsm8k")
        assert caught.value.exit_code == 3
    assert kept(own_cache, "gsm8k") == []
    monkeypatch.setitem(TASKS, "gsm8k", replace(TASKS["gsm8k"], package=made))
    assert len(questions(prepared("gsm8k")["gsm8k"])) == COUNT


GSM, ARC = REQUESTS.format("gsm8k/gold_bpb_5shot"), REQUESTS.format("arc_easy/test_rc_5shot")
SWAG, DEV = TABLES.format("hellaswag/none/validation"), "hails/mmlu_no_train/algebra/dev"


def changed(file: str, number: int, **fields: Any) -> Any:
    def change(files: Files) -> None:
        entry = files[file][number]
        entry.get("doc", entry).update(fields)

    return change


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("gsm8k", lambda files: files.pop(GSM), "file in the wheel: there is no"),
        ("gsm8k", lambda files: files.update({GSM: []}), "has no entries"),
        ("gsm8k", lambda files: files.update({GSM: b"text"}), "cannot be read"),
        ("gsm8k", changed(GSM, 3, answer="4"), "entry 4: doc.answer: String should match"),
        ("gsm8k", changed(GSM, 3, question=None), "entry 4: doc.question: Input should be a"),
        ("arc_easy", changed(ARC, 1, gold=3), "entry 2: doc: .*gold is 3 of 3 choices"),
        ("arc_easy", changed(ARC, 0, query="What?"), "entry 1: doc.query: String should match"),
        ("hellaswag", changed(SWAG, 2, label="4"), "entry 3: label: String should match"),
        ("hellaswag", lambda files: files.update({SWAG: b"text"}), "cannot be read"),
        ("mmlu", lambda files: files.pop(TABLES.format(DEV)), "file in the wheel: there is no"),
        ("mmlu", changed(TABLES.format(DEV), 0, answer=4), "entry 1: answer: .*less than or equal"),
    ],
)
def test_data_of_another_shape_are_named(
    task: str,
    change: Any,
    message: str,
    index: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_made_packages(index, monkeypatch, change)
    with pytest.raises(QuantlineError, match=message) as caught:
        prepared(task)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith("made_olmo==1.0: ")
    assert kept(own_cache, task) == []


def test_a_full_disk_is_named(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_packages(index, monkeypatch)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare, "_write_lines", full)
    with pytest.raises(QuantlineError, match="No space left on device") as caught:
        prepared("gsm8k")
    assert caught.value.exit_code == 3
    assert str(own_cache) in str(caught.value)


def test_the_harness_stays_off_the_network(own_cache: Path) -> None:
    variables = prepare.harness_variables()
    assert variables["HF_HUB_OFFLINE"] == variables["HF_DATASETS_OFFLINE"] == "1"
    folders = [value for value in variables.values() if value.startswith("/")]
    assert len(folders) == 4
    assert all(folder.startswith(str(own_cache)) for folder in folders)
