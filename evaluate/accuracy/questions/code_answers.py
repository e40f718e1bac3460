"""Scores answers that are programs: runs each one with its tests, in a sandbox of its own."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evaluate.accuracy.questions.sandbox import passes
from evaluate.accuracy.tasks.samples import TASKS

METRIC = "pass@1"
FENCE = "```"
MOST_AT_ONCE = 4


def score_programs(folder: Path, task: str, progress: Callable[[int, int], None]) -> None:
    """Runs the answers of a task whose samples are in the folder, and writes their scores into
    them. `progress` is told how many of how many are done."""
    file = folder / f"{task}.jsonl"
    samples = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    programs = [program(sample["doc"], str(sample["filtered_resps"][0])) for sample in samples]
    workers = min(MOST_AT_ONCE, os.cpu_count() or 1)
    scores = []
    with ThreadPoolExecutor(workers) as pool:
        for passed in pool.map(passes, programs):
            scores.append(float(passed))
            progress(len(scores), len(programs))
    for sample, score in zip(samples, scores, strict=True):
        sample[METRIC] = score
    lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
    file.write_text("".join(lines), encoding="utf-8")
    described = json.loads((folder / TASKS).read_text(encoding="utf-8"))
    described[task]["scores"] = {f"{METRIC},none": sum(scores) / len(scores)}
    described[task]["higher_is_better"] = {METRIC: True}
    (folder / TASKS).write_text(json.dumps(described, indent=2), encoding="utf-8")


def program(question: dict[str, Any], answer: str) -> str:
    """The answer as a program, with the question's tests at its end."""
    code = _code(answer)
    if "entry_point" in question:  # HumanEval: the answer goes on where the prompt ends
        tests = f"{question['test']}\ncheck({question['entry_point']})"
        return f"{question['prompt']}{code}\n{tests}\n"
    return "\n".join([code, question["test_setup_code"], *question["test_list"], ""])


def _code(answer: str) -> str:
    """The code of an answer, which a model may put between fences a second time."""
    if answer.lstrip().startswith(FENCE):
        answer = answer.lstrip().partition("\n")[2]
    return answer.partition(f"\n{FENCE}")[0].removesuffix(FENCE)
