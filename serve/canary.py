"""The first answer of a server, held against the one that the checkpoint gave when it was made."""

import math
from dataclasses import dataclass
from difflib import SequenceMatcher
from http.client import HTTPException
from pathlib import Path
from statistics import fmean
from typing import Any

from conf.errors import world_fault
from conf.models import has_chat_template, read_config
from quantize.checkpoint import manifest
from serve.engine.client import post

TOKENS = 32  # as many as quantize kept
ALIKE = 0.3  # share of words in common, in their order; kernels differ, nonsense has next to none
# A weak model, sure of little, soon says other words on other kernels, and yet expects the kept
# ones nearly as much as its own (2.4 and 2.5 nats a token, where it was measured); a broken one
# does not (5.5 and 2.6), or expects nothing more than anything else.
SURPRISED = 2.0
CLUELESS = 0.5  # of the nats that a guess among all words has
PROMPT = "What is the capital of France?"
GREEDY = {"max_tokens": TOKENS, "temperature": 0}
FAILURES = (OSError, LookupError, TypeError, ValueError, HTTPException)


@dataclass
class Canary:
    """What was asked, what was said, and what was said when the checkpoint was made."""

    prompt: str
    answer: str
    expected: str
    """Empty for a checkpoint that is not ours."""
    surprise: float = 0.0
    """How much less the expected words were expected than its own, in nats a token."""

    @property
    def likeness(self) -> float:
        return SequenceMatcher(None, self.answer.split(), self.expected.split()).ratio()

    @property
    def differs(self) -> bool:
        return bool(self.expected) and self.likeness < ALIKE

    @property
    def fault(self) -> str:
        """What is wrong with the answer; empty where nothing is."""
        if not self.answer.strip():
            return f"it says nothing when asked {self.prompt!r}"
        if self.differs and not self.surprise <= SURPRISED:  # which is so of no number, too
            return (
                f"asked {self.prompt!r} it says {self.answer!r}; when it was made it said "
                f"{self.expected!r}"
            )
        return ""


def listen(folder: Path, url: str, name: str) -> Canary:
    """Asks the server what quantize asked; where it answers otherwise, what it holds of the answer
    that was kept."""
    ours = manifest.find(folder)
    kept = ours.canary if ours else {}
    is_chat, vocabulary = has_chat_template(folder), int(read_config(folder)["vocab_size"])
    question = Question(url, name, kept.get("prompt", PROMPT), is_chat, vocabulary)
    try:
        words = question.answer()
    except FAILURES as error:
        kind = type(error).__name__
        raise world_fault(f"the server does not answer its first question ({kind})") from error
    canary = Canary(question.prompt, words.strip(), kept.get("answer", ""))
    if canary.differs:
        try:
            canary.surprise = question.surprise(canary.expected)
        except FAILURES:  # a server that does not tell
            canary.surprise = math.inf
    return canary


@dataclass
class Question:
    """A prompt that a server is asked."""

    url: str
    name: str
    prompt: str
    is_chat: bool
    vocabulary: int
    """How many words it knows."""

    def answer(self) -> str:
        path = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        choice = self._post(path, GREEDY | self._asked)["choices"][0]
        return str(choice["message"]["content"] or "") if self.is_chat else str(choice["text"])

    def surprise(self, expected: str) -> float:
        """How much less these words were expected than its own, in nats a token; without end where
        it expects nothing."""
        before = self._post("/tokenize", self._asked)["tokens"]
        kept = self._post("/tokenize", {"prompt": expected, "add_special_tokens": False})["tokens"]
        said = self._post("/v1/completions", GREEDY | {"prompt": before, "logprobs": 0})
        own = -fmean(said["choices"][0]["logprobs"]["token_logprobs"])
        if own > CLUELESS * math.log(self.vocabulary):
            return math.inf
        whole = {"prompt": before + kept, "prompt_logprobs": 0, "max_tokens": 1}
        read = self._post("/v1/completions", GREEDY | whole)["choices"][0]["prompt_logprobs"]
        told = [next(iter(token.values()))["logprob"] for token in read[len(before) :]]
        return -fmean(told) - own

    @property
    def _asked(self) -> dict[str, Any]:
        if self.is_chat:
            return {"messages": [{"role": "user", "content": self.prompt}]}
        return {"prompt": self.prompt}

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return post(self.url, path, {"model": self.name} | body)
