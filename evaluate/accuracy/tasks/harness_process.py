"""Runs EleutherAI's harness in its own interpreter. Called by path; imports nothing of ours.

The first line on standard input names the tasks. They are loaded at once, so that a wrong name or
an unreachable hub is known before a server is started. Each further line runs one task on one
server, writes the samples to a folder and sends an event. Requests and events are those of
events.py, one JSON object per line. Events go to the pipe whose number is the last argument.
"""

import difflib
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEAREST = 3
ERROR_LENGTH = 300


def main() -> None:
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return
    pipe = int(sys.argv[-1])
    os.set_inheritable(pipe, False)

    def send(kind: str, **content: Any) -> None:
        os.write(pipe, (json.dumps({"type": kind, "content": content}) + "\n").encode())

    request = json.loads(sys.stdin.readline())["content"]
    try:
        folders = {task["name"]: task["folder"] for task in request["tasks"]}
        manager, unknown, problems = _load_tasks(folders, request["defaults"])
    except Exception as error:
        send("AskFailed", message=_error_line(error))
        return
    send("TasksLoaded", unknown=unknown, problems=problems)
    for line in sys.stdin:
        try:
            _ask(AskTask(**json.loads(line)["content"]), manager)
            send("SamplesWritten")
        except Exception as error:
            send("AskFailed", message=_error_line(error))


def _error_line(error: Exception) -> str:
    """The error as one line; the traceback goes to the log."""
    traceback.print_exception(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_LENGTH]


def _load_tasks(
    folders: dict[str, str], has_defaults: bool
) -> tuple[Any, dict[str, list[str]], dict[str, str]]:
    """The harness's task manager, the unknown tasks, and the tasks that cannot be loaded.
    `folders`: the folder of each task's file."""
    from lm_eval.tasks import TaskManager

    # Reading the harness's thousands of tasks takes seconds; local tasks do not need them.
    manager = TaskManager(
        include_path=sorted(set(filter(None, folders.values()))),
        include_defaults=has_defaults,
    )
    unknown, problems = {}, {}
    for name in folders:
        if name not in manager.all_tasks:
            unknown[name] = difflib.get_close_matches(name, manager.all_tasks, NEAREST)
    for name in folders if not unknown else []:
        try:
            _change_folder(folders[name])
            manager.load([name])
        except Exception as error:
            problems[name] = _error_line(error)
    return manager, unknown, problems


def _change_folder(folder: str) -> None:
    """Changes to the task's folder: its data files are relative to it."""
    os.chdir(folder or "/")


@dataclass(frozen=True)
class AskTask:
    """The request of that name in events.py, which cannot be imported here."""

    task: str
    beside: str
    folder: str
    fewshot: int | None
    limit: int | None
    seed: int
    chat_template: bool
    model: dict[str, object]


def _ask(request: AskTask, manager: Any) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model

    model = get_model("local-completions").create_from_arg_obj(request.model, {"batch_size": 1})
    seed = request.seed
    _change_folder(request.beside)
    _seed_languages(seed)
    results = simple_evaluate(
        model=model,
        tasks=[request.task],
        num_fewshot=request.fewshot,
        limit=request.limit,
        apply_chat_template=request.chat_template,
        fewshot_as_multiturn=request.chat_template,
        task_manager=manager,
        bootstrap_iters=0,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
    )
    _write(Path(request.folder), results, model)


def _seed_languages(seed: int) -> None:
    """IFEval's check of an answer's language draws at random, and has a seed of its own."""
    with suppress(ImportError):
        from langdetect import DetectorFactory

        DetectorFactory.seed = seed


def _write(folder: Path, results: Any, model: Any) -> None:
    """Writes a file of samples per task, and a file that describes them."""
    from lm_eval.utils import handle_non_serializable

    folder.mkdir(parents=True)
    tasks = {}
    for name, samples in results["samples"].items():
        config = results["configs"][name]
        file = f"{re.sub(r'[^0-9A-Za-z._-]', '_', name)}.jsonl"
        with (folder / file).open("w", encoding="utf-8") as lines:
            for sample in samples:
                content = json.dumps(sample, default=handle_non_serializable, ensure_ascii=False)
                lines.write(content + "\n")
        tasks[name] = {
            "file": file,
            "scores": _scores(results["results"][name]),
            "higher_is_better": results["higher_is_better"].get(name, {}),
            "kind": config.get("output_type", ""),
            "fewshot": config.get("metadata", {}).get("num_fewshot", config.get("num_fewshot", 0)),
            "version": results["versions"].get(name),
            "cut": _cut(samples, model),
        }
    (folder / "tasks.json").write_text(json.dumps(tasks, indent=2, default=str))


def _scores(results: Mapping[str, object]) -> dict[str, float]:
    """The scores by `METRIC,FILTER`, without names, counts and standard errors."""
    return {
        key: value
        for key, value in results.items()
        if isinstance(value, int | float) and "," in key and "_stderr," not in key
    }


def _cut(samples: list[Any], model: Any) -> int:
    """The number of questions longer than the context; the harness cuts their beginning."""
    cut = set()
    for sample in samples:
        for arguments in sample["arguments"]:
            text, token_limit = str(arguments[0]), model.max_length
            if len(arguments) > 1 and isinstance(arguments[1], dict):
                token_limit -= arguments[1].get("max_gen_toks", model._max_gen_toks)
            elif len(arguments) > 1:
                text += str(arguments[1])
            if len(model.tok_encode(text)) > token_limit:
                cut.add(sample["doc_id"])
    return len(cut)


if __name__ == "__main__":
    main()
