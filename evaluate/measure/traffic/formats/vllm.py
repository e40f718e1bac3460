"""The custom data set of `vllm bench serve`: a prompt and, optionally, the length of its answer.

{"prompt": "What is the capital of India?", "output_tokens": 10}
"""

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    Text,
    Tokens,
    TrafficFormat,
    TrafficRecord,
    answer_of,
)


class CustomRecord(TrafficRecord):
    prompt: Text
    output_tokens: Tokens | None = None


def conversation(record: CustomRecord) -> Conversation:
    return Conversation((Turn((Passage(record.prompt),), answer_of(record.output_tokens)),))


FORMAT = TrafficFormat(
    "vllm", (("prompt",),), CustomRecord, conversation, answer_key="output_tokens"
)
