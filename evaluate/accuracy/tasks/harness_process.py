"""Runs EleutherAI's harness in its own interpreter. Called by path; imports nothing of ours.

The first line on standard input names the tasks. They are loaded at once, so that a wrong name or
an unreachable hub is known before a server is started. Each further line runs one task on one
server, writes the samples to a folder and sends an event. Requests and events are those of
events.py, one JSON object per line. Events go to the pipe whose number is the last argument.
"""

import asyncio
import difflib
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEAREST = 3
ERROR_LENGTH = 300
TOP = 20  # most likely tokens that a server tells, unless it was started with a lower limit
TOKEN = "token_id:"


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

    model = _model_class().create_from_arg_obj(request.model, {"batch_size": 1})
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


def _model_class() -> Any:
    """The harness's client, which asks once where answers of one token share their context.

    The harness sends the context with each answer, and has every token of it scored: for a letter
    of MMLU four times a thousand tokens. Here the server tells the likeliest next tokens instead.
    Answers that are not among them are asked for as before.
    """
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class Client(LocalCompletionsAPI):  # type: ignore[misc]
        def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> list[Any]:
            places = shared_contexts([request[1:] for request in requests], self.max_length)
            scores = self._next_tokens([list(context) for context in places])
            answers: dict[int, tuple[float, bool]] = {}
            for of_context, likeliest in zip(places.values(), scores, strict=True):
                for place in of_context:
                    (token,) = requests[place][2]
                    if token in likeliest:
                        best = max(likeliest.values())
                        answers[place] = (likeliest[token], likeliest[token] == best)
            others = [place for place in range(len(requests)) if place not in answers]
            if others:
                scored = super()._loglikelihood_tokens([requests[n] for n in others], **kwargs)
                answers |= dict(zip(others, scored, strict=True))
            return [answers[place] for place in range(len(requests))]

        def _next_tokens(self, contexts: list[list[int]]) -> list[dict[int, float]]:
            """The log-probabilities of the likeliest tokens after each context."""
            if not contexts:
                return []
            options = {"max_tokens": 1, "logprobs": TOP, "return_tokens_as_token_ids": True}
            asking = self.get_batched_requests(
                contexts, [None] * len(contexts), generate=True, gen_kwargs=options
            )
            try:
                return [scores for batch in asyncio.run(asking) for scores in batch]
            except Exception as error:  # a server that tells fewer
                print(f"{_error_line(error)}: each answer is asked for", file=sys.stderr)
                return [{} for _ in contexts]

        @staticmethod
        def parse_generations(outputs: Any, **kwargs: Any) -> list[Any]:
            """Scores, where they were asked for; else texts."""
            (choice,) = outputs["choices"]
            if choice.get("logprobs") is None:
                texts: list[Any] = LocalCompletionsAPI.parse_generations(outputs, **kwargs)
                return texts
            (top,) = choice["logprobs"]["top_logprobs"]
            return [{int(name.removeprefix(TOKEN)): score for name, score in top.items()}]

    return Client


def shared_contexts(
    requests: Sequence[tuple[list[int], list[int]]], max_length: int
) -> dict[tuple[int, ...], list[int]]:
    """The places of requests by their context, for contexts with several answers of one token
    each. Contexts that are too long lose their beginning, as in the harness."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (context, answer) in enumerate(requests):
        if len(answer) == 1:
            places.setdefault(tuple(context[-(max_length - 1) :]), []).append(place)
    return {context: shared for context, shared in places.items() if len(shared) > 1}


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
