"""EleutherAI's harness, in the interpreter that has it: called by its path, with nothing of ours.

The first line on standard input names the tasks. They are loaded, so that a wrong name or a hub out
of reach is known before a server is started. Each further line asks one task of one server; the
answers' samples go to a folder, and an event says that they are there. Requests and events are
those of events.py, one line of JSON each; events go to the pipe that the last argument numbers.
"""

import difflib
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

NEAREST = 3
ERROR_LENGTH = 300


def main() -> None:
    pipe = int(sys.argv[-1])
    os.set_inheritable(pipe, False)

    def send(kind: str, **content: Any) -> None:
        os.write(pipe, (json.dumps({"type": kind, "content": content}) + "\n").encode())

    wanted = json.loads(sys.stdin.readline())["content"]
    try:
        manager, unknown, problems = _loaded(wanted)
    except Exception as error:
        send("AskFailed", message=_words(error))
        return
    send("TasksLoaded", unknown=unknown, problems=problems)
    for line in sys.stdin:
        try:
            _ask(json.loads(line)["content"], manager)
            send("SamplesWritten")
        except Exception as error:
            send("AskFailed", message=_words(error))


def _words(error: Exception) -> str:
    """The error as one line; all of it goes to the log."""
    traceback.print_exception(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_LENGTH]


def _loaded(wanted: dict[str, Any]) -> tuple[Any, dict[str, list[str]], dict[str, str]]:
    """The harness's tasks, and those wanted that do not exist or cannot be loaded."""
    from lm_eval.tasks import TaskManager

    # Reading the thousands of tasks that come with it takes seconds, and a local one needs none.
    folders = {task["name"]: task["folder"] for task in wanted["tasks"]}
    manager = TaskManager(
        include_path=sorted(set(filter(None, folders.values()))),
        include_defaults=wanted["defaults"],
    )
    unknown, problems = {}, {}
    for name in folders:
        if name not in manager.all_tasks:
            unknown[name] = difflib.get_close_matches(name, manager.all_tasks, NEAREST)
    for name in folders if not unknown else []:
        try:
            _beside(folders[name])
            manager.load([name])
        except Exception as error:
            problems[name] = _words(error)
    return manager, unknown, problems


def _beside(folder: str) -> None:
    """A task's file names its data from the folder that it lies in."""
    os.chdir(folder or "/")


def _ask(request: dict[str, Any], manager: Any) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model

    model = get_model("local-completions").create_from_arg_obj(request["model"], {"batch_size": 1})
    seed = request["seed"]
    _beside(request["beside"])
    found = simple_evaluate(
        model=model,
        tasks=[request["task"]],
        num_fewshot=request["fewshot"],
        limit=request["limit"],
        apply_chat_template=request["chat_template"],
        fewshot_as_multiturn=request["chat_template"],
        task_manager=manager,
        bootstrap_iters=0,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
    )
    _write(Path(request["folder"]), found, model)


def _write(folder: Path, found: Any, model: Any) -> None:
    """A file of samples for each task, and one that says what they are."""
    from lm_eval.utils import handle_non_serializable

    folder.mkdir(parents=True)
    tasks = {}
    for name, samples in found["samples"].items():
        file = f"{re.sub(r'[^0-9A-Za-z._-]', '_', name)}.jsonl"
        with (folder / file).open("w", encoding="utf-8") as lines:
            for sample in samples:
                content = json.dumps(sample, default=handle_non_serializable, ensure_ascii=False)
                lines.write(content + "\n")
        tasks[name] = {
            "file": file,
            "scores": _scores(found["results"][name]),
            "higher_is_better": found["higher_is_better"].get(name, {}),
            "kind": found["configs"][name].get("output_type", ""),
            "fewshot": found["configs"][name].get("num_fewshot", 0),
            "version": found["versions"].get(name),
            "cut": _cut(samples, model),
        }
    (folder / "tasks.json").write_text(json.dumps(tasks, indent=2, default=str))


def _scores(results: dict[str, Any]) -> dict[str, float]:
    """By `METRIC,FILTER`, as the harness writes them; without names, counts and errors."""
    return {
        key: value
        for key, value in results.items()
        if isinstance(value, int | float) and "," in key and "_stderr," not in key
    }


def _cut(samples: list[dict[str, Any]], model: Any) -> int:
    """Questions that were longer than the context, of which the harness drops the beginning."""
    cut = set()
    for sample in samples:
        for arguments in sample["arguments"]:
            text, room = str(arguments[0]), model.max_length
            if len(arguments) > 1 and isinstance(arguments[1], dict):
                room -= arguments[1].get("max_gen_toks", model._max_gen_toks)
            elif len(arguments) > 1:
                text += str(arguments[1])
            if len(model.tok_encode(text)) > room:
                cut.add(sample["doc_id"])
    return len(cut)


if __name__ == "__main__":
    main()
