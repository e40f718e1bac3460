"""Reads the harness's samples: the metric to compare, the scores, and the lost questions."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conf.errors import bad_input, environment_failure
from evaluate.accuracy.answers import Answers
from evaluate.results.row_values import LostQuestion

TASKS = "tasks.json"
GENERATED, CHOSEN = "generate_until", "multiple_choice"
TOLERANCE = 1e-6
LOST_KEPT = 5
QUESTION_LENGTH = 300  # characters kept of a question, from its end
ANSWER_LENGTH = 100


@dataclass
class TaskSamples:
    """One task's samples and the harness's scores."""

    name: str
    kind: str
    """Whether answers are generated, chosen or only scored."""
    scores: dict[str, float]
    """The harness's scores, by metric and filter."""
    higher_is_better: dict[str, bool]
    fewshot: int
    version: Any
    cut: int
    """Questions that were longer than the context."""
    samples: list["KeptSample"]


class KeptSample(BaseModel):
    """One question of a task and its answer; the harness writes more fields. The score in each
    metric is a field with the metric's name."""

    model_config = ConfigDict(strict=True, extra="allow")

    doc_id: int | str
    doc_hash: str
    prompt_hash: str
    filter: str
    target: Any
    arguments: Annotated[list[Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    resps: list[Any]
    filtered_resps: list[Any]

    def score(self, metric: str) -> float | None:
        """The score in a metric; None if it is missing or is no number."""
        value = (self.model_extra or {}).get(metric)
        return float(value) if isinstance(value, bool | int | float) else None


class KeptTask(BaseModel):
    """The fields that are read of a task."""

    model_config = ConfigDict(strict=True)

    kind: str
    scores: dict[str, float]
    higher_is_better: dict[str, bool | None]
    samples: Annotated[list[KeptSample], Field(min_length=1)]


def read(folder: Path) -> dict[str, TaskSamples]:
    """The samples of every task in a folder; a group has several tasks."""
    try:
        tasks = json.loads((folder / TASKS).read_text(encoding="utf-8"))
        samples_by_task = {}
        for name, content in tasks.items():
            lines = (folder / content.pop("file")).read_text(encoding="utf-8").split("\n")
            samples = [json.loads(line) for line in lines if line.strip()]
            kept = KeptTask.model_validate(content | {"samples": samples})
            samples_by_task[name] = TaskSamples(name, **content, samples=kept.samples)
        return samples_by_task
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise environment_failure(
            f"{folder}: these samples cannot be read ({_fault(error)}); force=true asks again"
        ) from error


def _fault(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return " ".join(str(error).split())


def answers(task: TaskSamples, metric: str | None = None) -> Answers:
    """The score of each question, in the named metric or in the first usable one."""
    metric = metric or _metric(task)
    task_samples = _samples_of_metric(task, metric)
    if task.kind == CHOSEN:
        chance_score = float(numpy.mean([1 / len(sample.arguments) for sample in task_samples]))
    else:
        chance_score = None
    empty = [not "".join(map(str, _flat(sample.resps))).strip() for sample in task_samples]
    return Answers(
        metric=metric,
        scores=numpy.array(_scores(task, metric), float),
        questions=[f"{s.doc_id} {s.doc_hash} {s.prompt_hash}" for s in task_samples],
        empty_share=float(numpy.mean(empty)) if task.kind == GENERATED else 0.0,
        chance_score=chance_score,
    )


def _metric(task: TaskSamples) -> str:
    """The first metric of the task that is a mean over its questions. Perplexity and other metrics
    of a whole set cannot be compared question by question."""
    for metric, score in task.scores.items():
        scores = _scores(task, metric)
        higher_is_better = task.higher_is_better.get(metric.split(",")[0], True)
        if (
            scores
            and higher_is_better
            and math.isclose(numpy.mean(scores), score, abs_tol=TOLERANCE)
        ):
            return metric
    raise bad_input(
        f"accuracy.tasks: {task.name} has no metric that scores each question and is better when "
        f"higher; its metrics: {', '.join(task.scores) or 'none'}"
    )


def _scores(task: TaskSamples, metric: str) -> list[float]:
    name = metric.split(",")[0]
    scores = [sample.score(name) for sample in _samples_of_metric(task, metric)]
    known_scores = [score for score in scores if score is not None]
    return known_scores if len(known_scores) == len(scores) else []


def _samples_of_metric(task: TaskSamples, metric: str) -> list[KeptSample]:
    """The samples of the metric's filter; each question has one sample per filter."""
    _, _, metric_filter = metric.partition(",")
    chosen = [sample for sample in task.samples if sample.filter == metric_filter]
    return sorted(chosen, key=lambda sample: int(sample.doc_id))


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, list):
        return [values]
    return [item for value in values for item in _flat(value)]


def lost_questions(original: TaskSamples, other: TaskSamples, metric: str) -> list[LostQuestion]:
    """Some questions that the original answers better, as text."""
    pairs = zip(
        _samples_of_metric(original, metric), _samples_of_metric(other, metric), strict=True
    )
    name = metric.split(",")[0]
    lost = [
        (original_sample, other_sample)
        for original_sample, other_sample in pairs
        if (other_sample.score(name) or 0.0) < (original_sample.score(name) or 0.0)
    ]
    return [
        LostQuestion(
            question=str(original_sample.arguments[0][0])[-QUESTION_LENGTH:],
            right=_right_answer(original_sample),
            original_says=_answer_text(original_sample),
            it_says=_answer_text(other_sample),
        )
        for original_sample, other_sample in lost[:LOST_KEPT]
    ]


def _right_answer(sample: KeptSample) -> str:
    target, arguments = sample.target, sample.arguments
    if isinstance(target, int) and 0 <= target < len(arguments) > 1:
        target = arguments[target][1]
    return str(target)[-ANSWER_LENGTH:]


def _answer_text(sample: KeptSample) -> str:
    """The generated text, or the most likely choice."""
    responses, arguments = sample.filtered_resps, sample.arguments
    if len(arguments) > 1 and all(isinstance(response, list) for response in responses):
        best = max(range(len(responses)), key=lambda number: float(responses[number][0]))
        return str(arguments[best][1])[-ANSWER_LENGTH:]
    return str(responses[0] if responses else "")[-ANSWER_LENGTH:]
