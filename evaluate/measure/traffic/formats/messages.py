"""Messages of a chat, as OpenAI's API has them, and the turns that they make."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import JsonValue, model_validator

from evaluate.measure.traffic.conversation import Passage, Turn
from evaluate.measure.traffic.formats.base import TrafficRecord

ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard")
TEXTS = ("text", "input_text", "output_text")


class ContentPart(TrafficRecord):
    """A part of a message."""

    type: str
    text: str | None = None

    @model_validator(mode="after")
    def _is_a_text(self) -> "ContentPart":
        if self.type not in TEXTS or self.text is None:
            raise ValueError(f"only texts are read, not a part of the type {self.type}")
        return self


class MessageRecord(TrafficRecord):
    """What a message may hold beside its text, in any format."""

    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: JsonValue = None
    function_call: JsonValue = None

    @model_validator(mode="after")
    def _has_texts_alone(self) -> "MessageRecord":
        for name in ("tool_calls", "function_call"):
            if getattr(self, name):
                raise ValueError(f"a message has {name}, which is not read")
        if self.reasoning and self.thought != self.reasoning:
            raise ValueError("a message has two texts, reasoning_content and reasoning: keep one")
        return self

    @property
    def thought(self) -> str:
        """What a model wrote before its answer. Some servers have it under both keys."""
        return self.reasoning_content or self.reasoning or ""


class ChatMessage(MessageRecord):
    """A text with the role of its author."""

    role: str
    content: list[ContentPart] | str | None = None
    refusal: str | None = None
    """In place of the content."""

    @property
    def said(self) -> "Said":
        if isinstance(self.content, list):
            text = "".join(part.text or "" for part in self.content)
        else:
            text = self.content or ""
        return Said(self.role, text or self.refusal or "", self.thought)


class Said(NamedTuple):
    """A text, and whose it is."""

    author: str
    text: str
    thought: str = ""
    """What a model wrote before it."""

    @property
    def is_answer(self) -> bool:
        return self.author in ANSWERS

    @property
    def whole(self) -> str:
        """All that was written."""
        return self.thought + self.text


class Turns(NamedTuple):
    """What messages make."""

    turns: list[Turn]
    unanswered: list[Passage]
    """What follows the last answer."""


def prompt_of(begin: Iterable[Passage], messages: Sequence[Said]) -> list[Passage]:
    """The prompt of one request that sends all of these messages."""
    _check_thoughts(messages)
    texts = [Passage(message.text) for message in messages if message.text.strip()]
    return [*begin, *texts] if texts else []


def turns_of(begin: Iterable[Passage], messages: Sequence[Said]) -> Turns:
    """A turn is an answer and what precedes it. Answers before the first question are left out."""
    is_answered = bool(messages) and messages[-1].is_answer
    _check_thoughts(messages[:-1] if is_answered else messages)
    turns: list[Turn] = []
    asked = [*begin]
    is_asked = False
    for message in messages:
        has_text = bool(message.whole.strip())
        if not message.is_answer:
            asked += [Passage(message.text)] if has_text else []
            is_asked = is_asked or has_text
        elif is_asked and has_text:
            turns.append(Turn(tuple(asked), Passage(message.whole)))
            asked, is_asked = [], False
    return Turns(turns, asked if is_asked else [])


def _check_thoughts(prompt: Iterable[Said]) -> None:
    """Raises for reasoning in a message that a later prompt repeats: chat templates leave it out,
    so the answer and the prompt would need different texts."""
    if any(message.thought.strip() for message in prompt):
        raise ValueError(
            "a message before the last answer has reasoning_content (or reasoning), which chat "
            "templates do not send again: remove it"
        )
