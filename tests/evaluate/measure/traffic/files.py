"""Files of traffic for tests, and what they hold."""

import json
from pathlib import Path
from typing import Any

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import answer_of

PLAIN = {"input_tokens": 7, "output_tokens": 3}


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def chat(*values: str) -> dict[str, Any]:
    senders = ("human", "gpt")
    messages = [{"from": senders[n % 2], "value": value} for n, value in enumerate(values)]
    return {"id": "x", "conversations": messages}


def one_turn(
    prompt: Passage, tokens: int | None = None, arrival: float | None = None
) -> Conversation:
    return Conversation((Turn((prompt,), answer_of(tokens)),), arrival)
