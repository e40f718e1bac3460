"""The custom data set of `vllm bench serve`: a prompt and, optionally, the length of its answer.

{"prompt": "What is the capital of India?", "output_tokens": 10}

vLLM reads no system prompt. Here a text under one of guidellm's names for it comes before the
prompt.
"""

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    PrefixedRecord,
    Text,
    Tokens,
    TrafficFormat,
    answer_of,
)


class CustomRecord(PrefixedRecord):
    prompt: Text
    output_tokens: Tokens | None = None


def conversation(record: CustomRecord) -> Conversation:
    prompt = (*record.prefixes, Passage(record.prompt))
    return Conversation((Turn(prompt, answer_of(record.output_tokens)),), record.timestamp)


FORMAT = TrafficFormat(
    "vllm",
    (("prompt",),),
    CustomRecord,
    conversation,
    answer_key="output_tokens",
    text_key="prompt",
)
