"""Messages of a chat, as OpenAI's API has them, and the turns that they make."""

from collections.abc import Iterable
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


class ChatMessage(TrafficRecord):
    """A text with the role of its author."""

    role: str
    content: list[ContentPart] | str | None = None
    tool_calls: JsonValue = None
    function_call: JsonValue = None

    @model_validator(mode="after")
    def _has_a_text_alone(self) -> "ChatMessage":
        for name in ("tool_calls", "function_call"):
            if getattr(self, name):
                raise ValueError(f"a message has {name}, which is not read")
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class Said(NamedTuple):
    """A text, and whose it is."""

    author: str
    text: str


class Turns(NamedTuple):
    """What messages make."""

    turns: list[Turn]
    unanswered: list[Passage]
    """What follows the last answer."""


def turns_of(begin: Iterable[Passage], messages: Iterable[Said]) -> Turns:
    """A turn is an answer and what precedes it. Answers before the first question are left out."""
    turns: list[Turn] = []
    asked = [*begin]
    is_asked = False
    for message in messages:
        has_text = bool(message.text.strip())
        if message.author not in ANSWERS:
            asked += [Passage(message.text)] if has_text else []
            is_asked = is_asked or has_text
        elif is_asked and has_text:
            turns.append(Turn(tuple(asked), Passage(message.text)))
            asked, is_asked = [], False
    return Turns(turns, asked if is_asked else [])
