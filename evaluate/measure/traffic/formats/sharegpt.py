"""ShareGPT's conversations: messages of a human and of a model in turns.

{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}

Some data sets of this form have "role" and "content" in place of "from" and "value".
"""

from pydantic import Field, JsonValue, model_validator

from evaluate.measure.traffic.conversation import Conversation
from evaluate.measure.traffic.formats.base import PrefixedRecord, TrafficFormat
from evaluate.measure.traffic.formats.chat import CALL, Usage
from evaluate.measure.traffic.formats.messages import MessageRecord, Said, turns_of

LISTS = ("conversations",)


class Message(MessageRecord):
    sender: str | None = Field(default=None, alias="from")
    value: str | None = None
    role: str | None = None
    content: str | None = None

    @model_validator(mode="after")
    def _has_an_author(self) -> "Message":
        pairs = ((self.sender, self.value), (self.role, self.content))
        if sum(None not in pair for pair in pairs) != 1:
            raise ValueError("a message has either from and value, or role and content")
        return self

    @property
    def said(self) -> Said:
        text = self.value or self.content or ""
        return Said(self.sender or self.role or "", text, self.thought)


class ShareGptRecord(PrefixedRecord):
    conversations: list[Message]
    response: JsonValue = None
    usage: JsonValue = None
    output_tokens: JsonValue = None

    @model_validator(mode="after")
    def _is_no_call(self) -> "ShareGptRecord":
        for name in CALL:
            value = getattr(self, name)
            if name == "usage":  # others than of the answer's length say nothing of it
                value = isinstance(value, dict) and any(
                    value.get(key) for key in Usage.model_fields
                )
            if value:
                raise ValueError(
                    f"has {name}, as a logged call has: rename conversations to messages (the "
                    "format chat), or remove it"
                )
        return self


def conversation(record: ShareGptRecord) -> Conversation | None:
    """Questions after the last answer are left out."""
    turns, _ = turns_of(record.prefixes, [message.said for message in record.conversations])
    return Conversation(tuple(turns), record.timestamp) if turns else None


FORMAT = TrafficFormat(
    "sharegpt", (LISTS,), ShareGptRecord, conversation, lists=LISTS, message=Message
)
