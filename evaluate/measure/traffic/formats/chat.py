"""Logs and data sets of OpenAI's chat API: messages, with or without the last answer.

{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
{"messages": [{"role": "user", "content": "Hi"}], "output_tokens": 9}
{"messages": [{"role": "user", "content": "Hi"}], "response": "Hello!"}

A record with a response, a usage or output_tokens is one logged call: a request whose prompt is all
of its messages. A response may be the whole object of the API, with its choices and its usage.
Without them a record is a conversation, each answer of which ends a turn. A usage counts only if it
has the length of the answer. A call whose answer has no tokens failed, and is left out.
"""

from typing import Annotated

from pydantic import Field, model_validator

from conf.terminal import listed
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    MaybeTokens,
    PrefixedRecord,
    Tokens,
    TrafficFormat,
    TrafficRecord,
    answer_of,
    check_single,
    given,
    only_length,
)
from evaluate.measure.traffic.formats.messages import ChatMessage, Said, prompt_of, turns_of

LISTS = ("messages", "conversation")
CALL = ("response", "usage", "output_tokens")


class Choice(TrafficRecord):
    """One answer."""

    message: ChatMessage


class Usage(TrafficRecord):
    """Counted tokens."""

    completion_tokens: MaybeTokens | None = None
    output_tokens: MaybeTokens | None = None
    """As the API for responses calls them."""

    def lengths(self, place: str) -> dict[str, int]:
        """The length of the answer, by the keys that give it."""
        return {f"{place}.{name}": count for name, count in self if count}

    @property
    def is_empty(self) -> bool:
        """Whether the answer has no tokens."""
        counts = [count for _, count in self]
        return 0 in counts and not any(counts)


class Response(TrafficRecord):
    """An answer of the API."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None


class ChatRecord(PrefixedRecord):
    messages: list[ChatMessage] | None = None
    conversation: list[ChatMessage] | None = None
    response: str | Response | None = None
    """The answer to the last message."""
    usage: Usage | None = None
    output_tokens: Tokens | None = None
    """Of this answer."""

    @model_validator(mode="after")
    def _has_one_list(self) -> "ChatRecord":
        check_single(self, LISTS)
        if not given(self, LISTS):
            raise ValueError(f"there are no messages; they are called {' or '.join(LISTS)}")
        return self

    @property
    def said(self) -> list[Said]:
        return [message.said for message in self.messages or self.conversation or []]

    @property
    def call(self) -> list[str]:
        """The keys by which it is one logged call."""
        keys = [name for name in CALL if getattr(self, name) is not None]
        if self.usage and not self.usage.lengths("usage"):
            keys.remove("usage")
        return keys

    @property
    def has_failed(self) -> bool:
        """Whether it is a logged call without an answer."""
        usages = [self.usage]
        if isinstance(self.response, Response):
            usages.append(self.response.usage)
        is_empty = any(usage.is_empty for usage in usages if usage)
        is_answered = bool(self.said) and self.said[-1].is_answer
        return is_empty and self.answer is None and not is_answered

    @property
    def answer(self) -> Passage | None:
        """The answer of the call. A count is more exact than the tokens of its text."""
        lengths = {} if self.output_tokens is None else {"output_tokens": self.output_tokens}
        lengths |= self.usage.lengths("usage") if self.usage else {}
        text = self.response or ""
        if isinstance(text, Response):
            lengths |= text.usage.lengths("response.usage") if text.usage else {}
            text = text.choices[0].message.said.whole
        count = only_length(lengths)
        if count is not None:
            return answer_of(count)
        return Passage(text) if text.strip() else None


def conversation(record: ChatRecord) -> Conversation | None:
    if record.has_failed:
        return None
    turns = [_call(record)] if record.call else _turns(record)
    asked = tuple(turn for turn in turns if turn.prompt)
    return Conversation(asked, record.timestamp) if asked else None


def _call(record: ChatRecord) -> Turn:
    said = [message for message in record.said if message.whole.strip()]
    if said and said[-1].is_answer:
        raise ValueError(f"the last message is an answer: remove it, or {listed(record.call)}")
    return Turn(tuple(prompt_of(record.prefixes, said)), record.answer)


def _turns(record: ChatRecord) -> list[Turn]:
    turns, unanswered = turns_of(record.prefixes, record.said)
    return [*turns, Turn(tuple(unanswered), None)]


FORMAT = TrafficFormat(
    "chat",
    (("messages",), ("conversation",)),
    ChatRecord,
    conversation,
    answer_key="output_tokens",
    text_key="messages",
    lists=LISTS,
    message=ChatMessage,
)
