"""Prepares the tasks of accuracy=questions: data and definitions in Quantline's cache."""

import hashlib
import json
import random
from pathlib import Path

import yaml
from filelock import FileLock

from conf.cache import cache_root
from conf.errors import bad_input, unknown, writing
from conf.files.write_whole import write_once
from conf.models import files_sha256
from conf.schema.commands import AccuracyConfig
from conf.terminal import say
from evaluate.accuracy.questions import packages
from evaluate.accuracy.questions.catalog import TASKS, Definition, KnownTask
from evaluate.accuracy.questions.packages import Wheel
from evaluate.accuracy.questions.readers import Question
from evaluate.accuracy.questions.sandbox import check_sandbox
from evaluate.accuracy.tasks.events import Task

FORMAT = 1  # raise it when the same data are prepared differently
QUESTIONS, EXAMPLES = "questions.jsonl", "examples.jsonl"
NLTK_TABLES = "tokenizers/punkt_tab/english"
NLTK_SOURCE = f"llama_index/core/_static/nltk_cache/{NLTK_TABLES}"
NLTK_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


def prepared_tasks(accuracy: AccuracyConfig, harness_tasks: Path) -> list[Task]:
    """The tasks of accuracy.tasks, with their files. `harness_tasks`: the folder of the harness's
    own definitions."""
    names = _names(accuracy)
    for name in names:
        _fewshot(name, accuracy)  # raises before anything is downloaded
    if any(TASKS[name].runs_code for name in names):
        check_sandbox()
    root = cache_root() / "questions"
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / "lock"):
            return [_prepared(name, accuracy, harness_tasks, root) for name in names]


def _names(accuracy: AccuracyConfig) -> list[str]:
    """The names of the tasks, without those whose answers may not be run."""
    names = list(dict.fromkeys(accuracy.tasks))
    for name in names:
        if name not in TASKS:
            raise unknown("accuracy.tasks", name, TASKS)
    left_out = [name for name in names if TASKS[name].runs_code and not accuracy.run_code]
    if left_out:
        say(
            f"{' and '.join(left_out)} left out: answers are programs, which run only with "
            "accuracy.run_code=true"
        )
    kept = [name for name in names if name not in left_out]
    if not kept:
        raise bad_input(
            f"accuracy.tasks=[{','.join(names)}]: no task is left; accuracy.run_code=true runs them"
        )
    return kept


def _fewshot(name: str, accuracy: AccuracyConfig) -> int:
    task = TASKS[name]
    if accuracy.fewshot is None:
        return task.fewshot
    if accuracy.fewshot > task.most_examples:
        known = f"has {task.most_examples}" if task.most_examples else "has none"
        raise bad_input(
            f"accuracy.fewshot={accuracy.fewshot}: {name} {known}; give a smaller number, or other "
            "accuracy.tasks"
        )
    return accuracy.fewshot


def _prepared(name: str, accuracy: AccuracyConfig, harness_tasks: Path, root: Path) -> Task:
    task, fewshot = TASKS[name], _fewshot(name, accuracy)
    definition = _definition(name, task, fewshot, accuracy.chat_template)
    if task.needs_nltk:
        _prepare_nltk(root / "nltk")
    source = [FORMAT, task.package.sha256, accuracy.limit, accuracy.seed, fewshot]
    digest = _sha256([source, definition])
    folder = root / f"{name}-{digest[:12]}"

    def write_questions(unfinished: Path) -> None:
        sets = task.read(Wheel(task.package), fewshot)
        unfinished.mkdir()
        questions = _sampled(sets.questions, accuracy)
        _write_lines(unfinished / QUESTIONS, questions)
        _write_lines(unfinished / EXAMPLES, sets.examples or questions[:1])

    write_once(folder, write_questions)
    # The data may come from another machine, where the harness is elsewhere.
    base = {"include": str(harness_tasks / task.base)} if task.base else {}
    text = yaml.safe_dump(base | definition, sort_keys=False, allow_unicode=True)
    write_once(
        folder / f"{name}.yaml",
        lambda unfinished: unfinished.write_text(text, encoding="utf-8"),
        lambda path: path.is_file() and path.read_bytes() == text.encode(),
    )
    data = files_sha256([folder / QUESTIONS, folder / EXAMPLES])
    return Task(name, str(folder), _sha256([definition, data]), task.runs_code)


def _definition(name: str, task: KnownTask, fewshot: int, is_chat: bool) -> Definition:
    """The harness's definition of the task: its own one, asked about our files."""
    changes = task.definition | (task.chat if is_chat else {})
    files = {"data_files": {"test": QUESTIONS, "examples": EXAMPLES}}
    data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": files}
    definition = {"task": name, **data, "test_split": "test", "tag": None} | changes
    if not task.has_examples_in_text:
        return definition | {"num_fewshot": fewshot}
    return definition | {"num_fewshot": 0, "metadata": {"version": 1.0, "num_fewshot": fewshot}}


def _sampled(questions: list[Question], accuracy: AccuracyConfig) -> list[Question]:
    """A seeded sample, in the order of the set; all questions without a limit."""
    if accuracy.limit is None or accuracy.limit >= len(questions):
        return questions
    chosen = random.Random(accuracy.seed).sample(range(len(questions)), accuracy.limit)
    return [questions[number] for number in sorted(chosen)]


def _write_lines(path: Path, entries: list[Question]) -> None:
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    path.write_text("".join(lines), encoding="utf-8")


def _prepare_nltk(folder: Path) -> None:
    """Writes the tables of NLTK's sentence splitter for English."""

    def write_tables(unfinished: Path) -> None:
        wheel = Wheel(packages.NLTK_TABLES)
        unfinished.mkdir()
        for name in NLTK_FILES:
            (unfinished / name).write_bytes(wheel.content(f"{NLTK_SOURCE}/{name}"))

    write_once(folder / NLTK_TABLES, write_tables)


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def harness_variables() -> dict[str, str]:
    """Keeps the harness's libraries off the network, and their files in Quantline's cache."""
    root = cache_root() / "questions"
    home = root / "huggingface"
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_EVALUATE_OFFLINE": "1",
        "HF_HOME": str(home),
        "HF_DATASETS_CACHE": str(home / "datasets"),
        "HF_MODULES_CACHE": str(home / "modules"),
        "NLTK_DATA": str(root / "nltk"),
    }
