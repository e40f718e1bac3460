"""ShareGPT's conversations: messages of a human and of a model in turns.

{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
"""

from pydantic import Field

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import PrefixedRecord, TrafficFormat, TrafficRecord

ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard")


class Message(TrafficRecord):
    sender: str = Field(alias="from")
    value: str


class ShareGptRecord(PrefixedRecord):
    conversations: list[Message]


def conversation(record: ShareGptRecord) -> Conversation | None:
    """A turn is an answer and what precedes it. Answers before the first question and questions
    after the last answer are left out."""
    turns: list[Turn] = []
    asked = list(record.prefixes)
    for message in record.conversations:
        if message.sender not in ANSWERS:
            asked += [Passage(message.value)] if message.value.strip() else []
        elif asked and message.value.strip():
            turns.append(Turn(tuple(asked), Passage(message.value)))
            asked = []
    return Conversation(tuple(turns)) if turns else None


FORMAT = TrafficFormat("sharegpt", (("conversations",),), ShareGptRecord, conversation)
