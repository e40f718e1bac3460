"""Compares the first answer of a server with the answer that quantize recorded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from http.client import HTTPException
from pathlib import Path
from statistics import fmean
from typing import Any

from conf.errors import environment_failure
from conf.models import has_chat_template, read_config, required_int
from conf.schema.text import QUESTION
from quantize.checkpoint import manifest
from serve.engine.client import post

TOKENS = 32  # as many as quantize recorded
LEAST_LIKENESS = 0.3  # share of common words, in order; nonsense has almost none
# A weak model soon answers differently on other kernels. Yet the recorded answer is nearly as
# likely for it as its own (measured: 2.4 and 2.5 nats a token). For a broken model it is much less
# likely (5.5 and 2.6), or all tokens are about equally likely.
MOST_SURPRISE = 2.0
MOST_UNCERTAINTY = 0.5  # share of the nats of a uniform guess among all tokens
GREEDY = {"max_tokens": TOKENS, "temperature": 0}
FAILURES = (OSError, LookupError, TypeError, ValueError, HTTPException)


@dataclass
class Canary:
    """A prompt, the server's answer, and the answer that quantize recorded."""

    prompt: str
    answer: str
    expected: str
    """Empty for a checkpoint that is not ours."""
    surprise: float = 0.0
    """How much less likely the expected answer is than its own, in nats a token."""

    @property
    def likeness(self) -> float:
        return SequenceMatcher(None, self.answer.split(), self.expected.split()).ratio()

    @property
    def differs(self) -> bool:
        return bool(self.expected) and self.likeness < LEAST_LIKENESS

    @property
    def fault(self) -> str:
        """What is wrong with the answer; empty without a fault."""
        if not self.answer.strip():
            return f"the answer to {self.prompt!r} is empty"
        if self.differs and not self.surprise <= MOST_SURPRISE:  # true for NaN, too
            return (
                f"asked {self.prompt!r}, it answers {self.answer!r}; the recorded answer is "
                f"{self.expected!r}"
            )
        return ""


def ask_canary(folder: Path, url: str, name: str) -> Canary:
    """Asks the server the prompt that quantize asked. Where the answer differs, also measures how
    likely the recorded answer is."""
    checkpoint_manifest = manifest.find(folder)
    recorded = checkpoint_manifest.canary if checkpoint_manifest else None
    vocabulary = required_int(read_config(folder), "vocab_size")
    prompt = recorded.prompt if recorded else QUESTION
    question = Question(url, name, prompt, has_chat_template(folder), vocabulary)
    try:
        answer = question.answer()
    except FAILURES as error:
        kind = type(error).__name__
        raise environment_failure(
            f"the server does not answer its first question ({kind})"
        ) from error
    canary = Canary(question.prompt, answer.strip(), recorded.answer if recorded else "")
    if canary.differs:
        try:
            canary.surprise = question.surprise(canary.expected)
        except FAILURES:  # a server that returns no probabilities
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
    """Tokens in the vocabulary."""

    def answer(self) -> str:
        path = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        choice = self._post(path, GREEDY | self._prompt_fields)["choices"][0]
        return str(choice["message"]["content"] or "") if self.is_chat else str(choice["text"])

    def surprise(self, expected: str) -> float:
        """How much less likely this answer is than the server's own, in nats a token; infinite
        where its own answer is close to a uniform guess."""
        prompt_tokens = self._post("/tokenize", self._prompt_fields)["tokens"]
        expected_only = {"prompt": expected, "add_special_tokens": False}
        expected_tokens = self._post("/tokenize", expected_only)["tokens"]
        answering = GREEDY | {"prompt": prompt_tokens, "logprobs": 0}
        completion = self._post("/v1/completions", answering)
        own_surprise = -fmean(completion["choices"][0]["logprobs"]["token_logprobs"])
        if own_surprise > MOST_UNCERTAINTY * math.log(self.vocabulary):
            return math.inf
        scoring = {"prompt": prompt_tokens + expected_tokens, "prompt_logprobs": 0, "max_tokens": 1}
        logprobs = self._post("/v1/completions", GREEDY | scoring)["choices"][0]["prompt_logprobs"]
        expected_logprobs = [
            next(iter(token.values()))["logprob"] for token in logprobs[len(prompt_tokens) :]
        ]
        return -fmean(expected_logprobs) - own_surprise

    @property
    def _prompt_fields(self) -> dict[str, object]:
        if self.is_chat:
            return {"messages": [{"role": "user", "content": self.prompt}]}
        return {"prompt": self.prompt}

    def _post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        return post(self.url, path, {"model": self.name, **body})
