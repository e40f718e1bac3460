"""guidellm's data sets: a text, perhaps a system prompt before it, and token counts.

{"prompt": "What is a mutex?", "prompt_tokens_count": 5, "output_tokens_count": 120}

guidellm finds columns by their names; these are the names of guidellm 0.8.1. Numbered columns
(prompt_0, prompt_1), which are turns there, are not read.
"""

from pydantic import model_validator

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    PrefixedRecord,
    Text,
    Tokens,
    TrafficFormat,
    answer_of,
    check_single,
    given,
)

PROMPTS = ("prompt", "text", "input", "instruction", "question", "context", "content")
OUTPUT_COUNTS = ("output_tokens_count", "completion_tokens_count")


class GuidellmRecord(PrefixedRecord):
    """Counts of the prompt's tokens are not read: the model's own tokenizer counts."""

    prompt: Text | None = None
    text: Text | None = None
    input: Text | None = None
    instruction: Text | None = None
    question: Text | None = None
    context: Text | None = None
    content: Text | None = None
    output_tokens_count: Tokens | None = None
    completion_tokens_count: Tokens | None = None

    @model_validator(mode="after")
    def _has_one_prompt(self) -> "GuidellmRecord":
        """guidellm takes the first of several columns, whose order a line need not keep."""
        check_single(self, PROMPTS)
        if not given(self, PROMPTS):
            raise ValueError(f"there is no prompt; it is called one of {', '.join(PROMPTS)}")
        return self


def conversation(record: GuidellmRecord) -> Conversation:
    (column,) = given(record, PROMPTS)
    prompt = (*record.prefixes, Passage(getattr(record, column)))
    counts = [getattr(record, name) for name in given(record, OUTPUT_COUNTS)]
    return Conversation((Turn(prompt, answer_of(counts[0] if counts else None)),))


FORMAT = TrafficFormat(
    "guidellm",
    (*((prompt, count) for prompt in PROMPTS for count in OUTPUT_COUNTS), ("input",)),
    GuidellmRecord,
    conversation,
    answer_key="output_tokens_count",
    text_key="prompt",
)
