"""The samples that the harness leaves: which metric counts, and the questions that were lost."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conf.errors import bad_input, world_fault
from evaluate.accuracy.tasks.questions import Answers
from evaluate.results.row_values import LostQuestion

TASKS = "tasks.json"
GENERATED, CHOSEN = "generate_until", "multiple_choice"
TOLERANCE = 1e-6
LOST_KEPT = 5
QUESTION_LENGTH = 300  # characters kept of a question, from its end
ANSWER_LENGTH = 100

Sample = dict[str, Any]


@dataclass
class Asked:
    """One task's samples and what the harness says of them."""

    name: str
    kind: str
    """Whether answers are generated, chosen or only scored."""
    scores: dict[str, float]
    """The harness's own, by metric and filter."""
    higher_is_better: dict[str, bool]
    fewshot: int
    version: Any
    cut: int
    """Questions that were longer than the context."""
    samples: list[Sample]


class KeptSample(BaseModel):
    """What is read of a question's answer; the harness keeps more."""

    model_config = ConfigDict(strict=True)

    doc_id: int | str
    doc_hash: str
    prompt_hash: str
    filter: str
    target: Any
    arguments: Annotated[list[Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    resps: list[Any]
    filtered_resps: list[Any]


class KeptTask(BaseModel):
    """What is read of a task."""

    model_config = ConfigDict(strict=True)

    kind: str
    scores: dict[str, float]
    higher_is_better: dict[str, bool | None]
    samples: Annotated[list[KeptSample], Field(min_length=1)]


def read(folder: Path) -> dict[str, Asked]:
    """Every task in a folder; a group of tasks leaves several."""
    try:
        tasks = json.loads((folder / TASKS).read_text(encoding="utf-8"))
        found = {}
        for name, content in tasks.items():
            lines = (folder / content.pop("file")).read_text(encoding="utf-8").split("\n")
            samples = [json.loads(line) for line in lines if line.strip()]
            KeptTask.model_validate(content | {"samples": samples})
            found[name] = Asked(name, **content, samples=samples)
        return found
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise world_fault(
            f"{folder}: these samples cannot be read ({_words(error)}); force=true asks again"
        ) from error


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return " ".join(str(error).split())


def answers(asked: Asked, metric: str | None = None) -> Answers:
    """The scores of each question in the first metric that has some; or in the one named."""
    metric = metric or _metric(asked)
    chosen = _of(asked, metric)
    if asked.kind == CHOSEN:
        chance = float(numpy.mean([1 / len(sample["arguments"]) for sample in chosen]))
    else:
        chance = None
    empty = [not "".join(map(str, _flat(sample["resps"]))).strip() for sample in chosen]
    return Answers(
        metric=metric,
        scores=numpy.array(_scores(asked, metric), float),
        questions=[f"{s['doc_id']} {s['doc_hash']} {s['prompt_hash']}" for s in chosen],
        empty_share=float(numpy.mean(empty)) if asked.kind == GENERATED else 0.0,
        chance_score=chance,
    )


def _metric(asked: Asked) -> str:
    """The first metric of the task that is a mean over its questions; perplexities and other
    figures of a whole set cannot be compared question by question."""
    for metric, score in asked.scores.items():
        scores = _scores(asked, metric)
        rises = asked.higher_is_better.get(metric.split(",")[0], True)
        if scores and rises and math.isclose(numpy.mean(scores), score, abs_tol=TOLERANCE):
            return metric
    raise bad_input(
        f"accuracy.tasks: {asked.name} has no score for each question that is better when "
        f"higher; it has {', '.join(asked.scores) or 'none'}"
    )


def _scores(asked: Asked, metric: str) -> list[float]:
    name = metric.split(",")[0]
    found = [sample.get(name) for sample in _of(asked, metric)]
    if not all(isinstance(score, bool | int | float) for score in found):
        return []
    return [float(score) for score in found if score is not None]


def _of(asked: Asked, metric: str) -> list[Sample]:
    """The samples of the metric's filter: each question stands there once a filter."""
    _, _, kept = metric.partition(",")
    chosen = [sample for sample in asked.samples if sample["filter"] == kept]
    return sorted(chosen, key=lambda sample: int(sample["doc_id"]))


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, list):
        return [values]
    return [item for value in values for item in _flat(value)]


def lost_questions(original: Asked, other: Asked, metric: str) -> list[LostQuestion]:
    """Some questions that the original answers better, in words."""
    pairs = zip(_of(original, metric), _of(other, metric), strict=True)
    name = metric.split(",")[0]
    lost = [(ours, theirs) for ours, theirs in pairs if theirs[name] < ours[name]]
    return [
        LostQuestion(
            question=str(ours["arguments"][0][0])[-QUESTION_LENGTH:],
            right=_right(ours),
            original_says=_said(ours),
            it_says=_said(theirs),
        )
        for ours, theirs in lost[:LOST_KEPT]
    ]


def _right(sample: Sample) -> str:
    target, arguments = sample["target"], sample["arguments"]
    if isinstance(target, int) and 0 <= target < len(arguments) > 1:
        target = arguments[target][1]
    return str(target)[-ANSWER_LENGTH:]


def _said(sample: Sample) -> str:
    """The text that was generated, or the choice that was found most likely."""
    responses, arguments = sample["filtered_resps"], sample["arguments"]
    if len(arguments) > 1 and all(isinstance(one, list) for one in responses):
        best = max(range(len(responses)), key=lambda number: float(responses[number][0]))
        return str(arguments[best][1])[-ANSWER_LENGTH:]
    return str(responses[0] if responses else "")[-ANSWER_LENGTH:]
