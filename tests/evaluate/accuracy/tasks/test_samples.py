"""The harness's samples: the metric that counts, whose answer is whose, and files that are bad."""

import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from evaluate.accuracy.tasks.samples import KeptSample, TaskSamples, answers, lost_questions, read
from evaluate.results.row_values import LostQuestion


def sample(number: int, right: bool, kept: str = "none", **more: Any) -> dict[str, Any]:
    likely = [[-1.0, True], [-2.0, False]] if right else [[-3.0, False], [-2.0, True]]
    found = {
        "doc_id": number,
        "doc_hash": f"d{number}",
        "prompt_hash": f"p{number}",
        "target": 0,
        "filter": kept,
        "arguments": [[f"question {number}", " yes"], [f"question {number}", " no"]],
        "resps": [[one] for one in likely],
        "filtered_resps": likely,
        "acc": float(right),
    }
    return found | more


def asked(samples: list[dict[str, Any]], **more: Any) -> TaskSamples:
    content: dict[str, Any] = {
        "name": "made",
        "kind": "multiple_choice",
        "scores": {"acc,none": sum(s["acc"] for s in samples) / len(samples)},
        "higher_is_better": {"acc": True},
        "fewshot": 0,
        "version": 1,
        "cut": 0,
    }
    kept = [KeptSample.model_validate(content) for content in samples]
    return TaskSamples(**content | more, samples=kept)


def test_the_first_metric_counts_in_its_first_filter() -> None:
    strict = [sample(n, n > 0, "strict") for n in range(4)]
    loose = [sample(n, True, "loose") for n in range(4)]
    both = asked(strict + loose, scores={"acc,strict": 0.75, "acc,loose": 1.0})
    found = answers(both)
    assert found.metric == "acc,strict"
    assert found.scores.tolist() == [0, 1, 1, 1]
    assert found.chance_score == 0.5
    assert answers(both, "acc,loose").scores.tolist() == [1, 1, 1, 1]


def test_questions_are_put_in_order() -> None:
    found = answers(asked([sample(2, True), sample(0, False), sample(1, True)]))
    assert found.scores.tolist() == [0, 1, 1]
    assert found.questions[0] == "0 d0 p0"


@pytest.mark.parametrize(
    "more",
    [
        {"scores": {"word_perplexity,none": 12.0}},
        {"scores": {"acc,none": 0.9}},  # no mean over the questions
        {"higher_is_better": {"acc": False}},
    ],
)
def test_a_figure_that_no_question_has_alone_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(QuantlineError, match="made has no metric that scores each question"):
        answers(asked([sample(0, True), sample(1, False)], **more))


def test_generated_answers_that_are_empty_are_counted() -> None:
    said = [["", " \n"], ["word"], [""]]
    samples = [sample(n, False, resps=[texts]) for n, texts in enumerate(said)]
    assert answers(asked(samples, kind="generate_until")).empty_share == pytest.approx(2 / 3)


def test_lost_questions_are_told_in_words() -> None:
    original = asked([sample(0, True), sample(1, True), sample(2, False)])
    other = asked([sample(0, True), sample(1, False), sample(2, True)])
    assert lost_questions(original, other, "acc,none") == [
        LostQuestion(question="question 1", right=" yes", original_says=" yes", it_says=" no")
    ]
    before = asked([sample(0, True, filtered_resps=["Paris"], target="Paris")])
    after = asked([sample(0, False, filtered_resps=["London"], target="Paris")])
    (lost,) = lost_questions(before, after, "acc,none")
    assert (lost.right, lost.original_says, lost.it_says) == ("Paris", "Paris", "London")


def test_samples_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text('{"made": {"file": "gone.jsonl"}}')
    with pytest.raises(QuantlineError, match="force=true asks again") as caught:
        read(tmp_path)
    assert caught.value.exit_code == 3
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"filter": None}, "samples.0.filter"),
        ({"arguments": []}, "samples.0.arguments"),
        ({"arguments": ["question"]}, "samples.0.arguments.0"),
        ({"resps": "yes"}, "samples.0.resps"),
    ],
)
def test_a_damaged_sample_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    content = asked([sample(0, True)])
    task = {name: value for name, value in vars(content).items() if name not in ("name", "samples")}
    (tmp_path / "tasks.json").write_text(json.dumps({"made": task | {"file": "made.jsonl"}}))
    for good in (True, False):
        line = json.dumps(sample(0, True) | ({} if good else change))
        (tmp_path / "made.jsonl").write_text(f"{line}\n")
        if good:
            assert read(tmp_path) == {"made": content}
    with pytest.raises(QuantlineError, match=words) as caught:
        read(tmp_path)
    assert caught.value.exit_code == 3
