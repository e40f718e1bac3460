"""What an engine says of prompts. The processes that load vLLM import this, and nothing large."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Place:
    """One token of a greedy answer."""

    token: int
    likely: dict[int, float]
    """The log-probabilities of the most likely tokens."""


@dataclass(frozen=True)
class Scores:
    """What an engine says of the same prompts."""

    prompts: list[list[int]]
    """Tokens of the prompts that were sent one at a time."""
    scores: list[list[float]]
    """The log-probabilities of their tokens, from the second one on."""
    answers: list[list[Place]]
    """To prompts alone and in batches."""
