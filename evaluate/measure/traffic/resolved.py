"""Traffic as it is sent: passages of known tokens, kept in a file that every worker reads."""

import hashlib
import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from conf.cache import cache_root
from conf.errors import environment_failure, writing
from conf.files.write_whole import write_once


@dataclass(frozen=True)
class TokenPassage:
    """Token ids, or the seed and number of random ones."""

    ids: list[int] = field(default_factory=list)
    seed: str = ""
    tokens: int = 0

    @property
    def length(self) -> int:
        return len(self.ids) or self.tokens

    def token_ids(self, token_range: range) -> list[int]:
        return self.ids or random.Random(self.seed).choices(token_range, k=self.tokens)


@dataclass(frozen=True)
class ResolvedTurn:
    """One request: the conversation's first passages are its prompt."""

    passages: int
    output_tokens: int


@dataclass(frozen=True)
class ResolvedConversation:
    """A conversation whose lengths are known."""

    passages: list[TokenPassage]
    """Prompts and answers in turn."""
    turns: list[ResolvedTurn]
    arrival_s: float | None = None

    def input_tokens(self, turn: ResolvedTurn) -> int:
        return sum(passage.length for passage in self.passages[: turn.passages])


_READER = TypeAdapter(list[ResolvedConversation])


def write_resolved(conversations: list[ResolvedConversation]) -> str:
    """Writes the conversations into the cache. Returns the hash that names the file."""
    content = json.dumps([asdict(conversation) for conversation in conversations]).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    path = resolved_path(sha256)
    with writing(path):
        write_once(path, lambda unfinished: unfinished.write_bytes(content))
    return sha256


def read_resolved(sha256: str) -> list[ResolvedConversation]:
    path = resolved_path(sha256)
    try:
        return _READER.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise environment_failure(f"{path}: the requests cannot be read ({error})") from error


def resolved_path(sha256: str) -> Path:
    return cache_root() / "traffic" / f"{sha256[:32]}.json"
