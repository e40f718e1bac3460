"""The first answer of a server, held against the one that the checkpoint gave when it was made."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from http.client import HTTPException
from pathlib import Path

from conf.errors import world_fault
from conf.models import has_chat_template
from quantize import manifest
from serve.talk import post

TOKENS = 32  # as many as quantize kept
ALIKE = 0.3  # share of words in common, in their order; kernels differ, nonsense has next to none
PROMPT = "What is the capital of France?"


@dataclass
class Canary:
    """What was asked, what was said, and what was said when the checkpoint was made."""

    prompt: str
    answer: str
    expected: str
    """Empty for a checkpoint that is not ours."""

    @property
    def likeness(self) -> float:
        return SequenceMatcher(None, self.answer.split(), self.expected.split()).ratio()

    @property
    def fault(self) -> str:
        """What is wrong with the answer; empty where nothing is."""
        if not self.answer.strip():
            return f"it says nothing when asked {self.prompt!r}"
        if self.expected and self.likeness < ALIKE:
            return (
                f"asked {self.prompt!r} it says {self.answer!r}; when it was made it said "
                f"{self.expected!r}"
            )
        return ""


def listen(folder: Path, url: str, name: str) -> Canary:
    """Asks the server what quantize asked."""
    kept = manifest.read(folder).canary if (folder / manifest.FILE).is_file() else {}
    prompt, expected = kept.get("prompt", PROMPT), kept.get("answer", "")
    body = {"model": name, "max_tokens": TOKENS, "temperature": 0}
    try:
        if has_chat_template(folder):
            turn = [{"role": "user", "content": prompt}]
            answer = post(url, "/v1/chat/completions", body | {"messages": turn})
            words = str(answer["choices"][0]["message"]["content"] or "")
        else:
            answer = post(url, "/v1/completions", body | {"prompt": prompt})
            words = str(answer["choices"][0]["text"])
    except (OSError, LookupError, TypeError, ValueError, HTTPException) as error:
        kind = type(error).__name__
        raise world_fault(f"the server does not answer its first question ({kind})") from error
    return Canary(prompt, words.strip(), expected)
