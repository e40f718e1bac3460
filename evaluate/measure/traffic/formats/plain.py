"""Plain requests: lengths or a text, with or without a time in seconds.

{"timestamp": 0.4, "input_tokens": 220, "output_tokens": 80}
{"timestamp": 0.9, "text": "What is a mutex?", "output_tokens": 120}
"""

from pydantic import model_validator

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    PREFIXES,
    Moment,
    PrefixedRecord,
    Text,
    Tokens,
    TrafficFormat,
    answer_of,
    given,
)


class PlainRecord(PrefixedRecord):
    timestamp: Moment | None = None
    """Seconds."""
    input_tokens: Tokens | None = None
    text: Text | None = None
    output_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _has_a_prompt(self) -> "PlainRecord":
        if (self.input_tokens is None) == (self.text is None):
            raise ValueError("give either input_tokens or text")
        names = given(self, PREFIXES)
        if names and self.text is None:
            raise ValueError(f"input_tokens counts the whole prompt: remove {names[0]}")
        return self


def conversation(record: PlainRecord) -> Conversation:
    prompt = (*record.prefixes, Passage(record.text, record.input_tokens or 0))
    return Conversation((Turn(prompt, answer_of(record.output_tokens)),), record.timestamp)


FORMAT = TrafficFormat(
    "plain",
    (("output_tokens",), ("text",), ("input_tokens",)),
    PlainRecord,
    conversation,
    answer_key="output_tokens",
    text_key="text",
)
