"""Logs and data sets of OpenAI's chat API: messages, with or without the last answer.

{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
{"messages": [{"role": "user", "content": "Hi"}], "output_tokens": 9}
{"messages": [{"role": "user", "content": "Hi"}], "response": "Hello!"}

A response may be the whole object of the API, with its choices and its usage.
"""

from typing import Annotated

from pydantic import Field, model_validator

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    Moment,
    PrefixedRecord,
    Tokens,
    TrafficFormat,
    TrafficRecord,
    answer_of,
    check_single,
    given,
)
from evaluate.measure.traffic.formats.messages import ChatMessage, Said, turns_of

LISTS = ("messages", "conversation")


class Choice(TrafficRecord):
    """One answer."""

    message: ChatMessage


class Usage(TrafficRecord):
    """Counted tokens."""

    completion_tokens: Tokens | None = None


class Response(TrafficRecord):
    """An answer of the API."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None

    @property
    def answer(self) -> Passage | None:
        if self.usage is not None and self.usage.completion_tokens is not None:
            return Passage(tokens=self.usage.completion_tokens)
        return _text(self.choices[0].message.text)


class ChatRecord(PrefixedRecord):
    timestamp: Moment | None = None
    """Seconds."""
    messages: list[ChatMessage] | None = None
    conversation: list[ChatMessage] | None = None
    response: str | Response | None = None
    output_tokens: Tokens | None = None
    """Of the answer to the last message."""

    @model_validator(mode="after")
    def _has_one_list(self) -> "ChatRecord":
        check_single(self, LISTS)
        if not given(self, LISTS):
            raise ValueError(f"there are no messages; they are called {' or '.join(LISTS)}")
        check_single(self, ("response", "output_tokens"))
        return self

    @property
    def answer(self) -> Passage | None:
        """The answer to the last message, where the messages do not hold it."""
        if isinstance(self.response, Response):
            return self.response.answer
        return _text(self.response or "") or answer_of(self.output_tokens)


def _text(text: str) -> Passage | None:
    return Passage(text) if text.strip() else None


def conversation(record: ChatRecord) -> Conversation | None:
    said = [Said(each.role, each.text) for each in record.messages or record.conversation or []]
    turns, unanswered = turns_of(record.prefixes, said)
    if unanswered:
        turns.append(Turn(tuple(unanswered), record.answer))
    elif record.answer is not None:
        (name,) = given(record, ("response", "output_tokens"))
        raise ValueError(f"the last message is an answer: remove it, or {name}")
    return Conversation(tuple(turns), record.timestamp) if turns else None


FORMAT = TrafficFormat(
    "chat",
    (("messages",), ("conversation",)),
    ChatRecord,
    conversation,
    answer_key="output_tokens",
    text_key="messages",
)
