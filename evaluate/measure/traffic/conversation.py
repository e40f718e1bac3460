"""Conversations, as any source of traffic describes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)  # a trace has millions
class Passage:
    """A part of a prompt, or an answer: a text, or a number of random tokens."""

    text: str | None = None
    tokens: int = 0
    """For a passage without text."""
    seed: str = ""
    """Passages with the same seed begin with the same tokens; empty for tokens of its own."""
    is_drawn: bool = False
    """Whether its length is drawn, because a file does not give it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    prompt: tuple[Passage, ...]
    """What it adds to the conversation so far."""
    answer: Passage | None
    """None where a file does not say how long it is."""


@dataclass(frozen=True)
class Conversation:
    """Requests that follow each other."""

    turns: tuple[Turn, ...]
    arrival_s: float | None = None
    """When it begins, in a trace with times. A format's own records have the unit of the file."""
