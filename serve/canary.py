"""The first answer of a server, held against the one that the checkpoint gave when it was made."""

import math
from dataclasses import dataclass
from difflib import SequenceMatcher
from http.client import HTTPException
from pathlib import Path
from statistics import fmean
from typing import Any

from conf.errors import world_fault
from conf.models import has_chat_template
from quantize import manifest
from serve.talk import post

TOKENS = 32  # as many as quantize kept
ALIKE = 0.3  # share of words in common, in their order; kernels differ, nonsense has next to none
# A weak model, sure of nothing, soon says other words on other kernels, and yet expects the kept
# ones as much as its own (2.4 and 2.5 nats a token, where it was measured); a broken one does not
# (5.5 and 2.6).
SURPRISED = 2.0
PROMPT = "What is the capital of France?"
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
        if self.differs and self.surprise > SURPRISED:
            return (
                f"asked {self.prompt!r} it says {self.answer!r}; when it was made it said "
                f"{self.expected!r}"
            )
        return ""


def listen(folder: Path, url: str, name: str) -> Canary:
    """Asks the server what quantize asked; where it answers otherwise, what it holds of the answer
    that was kept."""
    kept = manifest.read(folder).canary if (folder / manifest.FILE).is_file() else {}
    question = Question(url, name, kept.get("prompt", PROMPT), has_chat_template(folder))
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

    def answer(self) -> str:
        choice = self._post(self._asked())["choices"][0]
        return str(choice["message"]["content"] or "") if self.is_chat else str(choice["text"])

    def surprise(self, expected: str) -> float:
        """How much less these words were expected than its own, in nats a token."""
        own = self._post(self._asked() | {"logprobs": True if self.is_chat else 0})
        told = own["choices"][0]["logprobs"]
        said = (
            [token["logprob"] for token in told["content"]]
            if self.is_chat
            else told["token_logprobs"]
        )
        whole = self._post(self._asked(expected) | {"max_tokens": 1, "prompt_logprobs": 0})
        read = whole["prompt_logprobs"] if self.is_chat else whole["choices"][0]["prompt_logprobs"]
        answer = read[int(own["usage"]["prompt_tokens"]) :]
        kept = [next(iter(token.values()))["logprob"] for token in answer]
        return fmean(said) - fmean(kept)

    def _asked(self, answer: str = "") -> dict[str, Any]:
        """The question, and what is said to have been answered so far."""
        if not self.is_chat:
            return {"prompt": f"{self.prompt} {answer}".strip()}
        turns = [{"role": "user", "content": self.prompt}]
        if not answer:
            return {"messages": turns}
        turns.append({"role": "assistant", "content": answer})
        goes_on = {"add_generation_prompt": False, "continue_final_message": True}
        return {"messages": turns} | goes_on

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        path = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        shared = {"model": self.name, "max_tokens": TOKENS, "temperature": 0}
        return post(self.url, path, shared | body)
