"""Plain requests: lengths or a text, with or without a time in seconds.

{"timestamp": 0.4, "input_tokens": 220, "output_tokens": 80}
{"timestamp": 0.9, "text": "What is a mutex?", "output_tokens": 120}
{"input_tokens": 520, "shared": [{"block": 1, "tokens": 500}], "output_tokens": 80}

`shared` is what the prompt begins with: equal blocks have equal tokens. They are a part of
`input_tokens`.
"""

from typing import Annotated

from pydantic import Field, model_validator

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    PREFIXES,
    PrefixedRecord,
    Text,
    Tokens,
    TrafficFormat,
    TrafficRecord,
    answer_of,
    given,
)


class Shared(TrafficRecord):
    """A part of several prompts."""

    block: Annotated[int, Field(ge=0, le=2**63)]
    tokens: Tokens


class PlainRecord(PrefixedRecord):
    input_tokens: Tokens | None = None
    text: Text | None = None
    output_tokens: Tokens | None = None
    shared: list[Shared] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_a_prompt(self) -> "PlainRecord":
        if (self.input_tokens is None) == (self.text is None):
            raise ValueError("give either input_tokens or text")
        names = given(self, PREFIXES)
        if names and self.text is None:
            raise ValueError(f"input_tokens counts the whole prompt: remove {names[0]}")
        if self.shared and self.input_tokens is None:
            raise ValueError("shared works only with input_tokens, not with text")
        if self.shared_tokens > (self.input_tokens or 0):
            raise ValueError(
                f"the blocks in shared have {self.shared_tokens} tokens, more than input_tokens "
                f"{self.input_tokens}"
            )
        return self

    @property
    def shared_tokens(self) -> int:
        return sum(part.tokens for part in self.shared)


def conversation(record: PlainRecord) -> Conversation:
    prompt = [*record.prefixes]
    prompt += [Passage(tokens=part.tokens, seed=f"shared {part.block}") for part in record.shared]
    own = (record.input_tokens or 0) - record.shared_tokens
    if own or record.text is not None:
        prompt.append(Passage(record.text, own))
    return Conversation((Turn(tuple(prompt), answer_of(record.output_tokens)),), record.timestamp)


FORMAT = TrafficFormat(
    "plain",
    (("output_tokens",), ("text",), ("input_tokens",)),
    PlainRecord,
    conversation,
    answer_key="output_tokens",
    text_key="text",
)
