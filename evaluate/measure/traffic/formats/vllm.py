"""The custom data set of `vllm bench serve`: a prompt and the length of its answer.

{"prompt": "What is the capital of India?", "output_tokens": 10}
"""

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import Text, Tokens, TrafficFormat, TrafficRecord


class CustomRecord(TrafficRecord):
    prompt: Text
    output_tokens: Tokens


def conversation(record: CustomRecord) -> Conversation:
    answer = Passage(tokens=record.output_tokens)
    return Conversation((Turn((Passage(record.prompt),), answer),))


FORMAT = TrafficFormat("vllm", ("prompt", "output_tokens"), CustomRecord, conversation)
